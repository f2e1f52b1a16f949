package tour

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Work keeps what a student writes. Each version is a commit under refs/course that no branch has,
// so that the student's own use of git is left alone. Files that git ignores, such as the database,
// are left alone too.
type Work struct{ Root string }

const (
	refs    = "refs/course/"   // holds the versions: NAME/1 is the first of an exercise
	present = "refs/course-at" // points to the exercise that the files are of
)

// git runs git, with an index of its own unless that is "".
func (w Work) git(index string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "git", args...) //nolint:gosec // ours
	cmd.Dir, cmd.Env = w.Root, os.Environ()
	if index != "" {
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+index)
	}
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// At is the exercise that the files are of, or "".
func (w Work) At() string {
	ref, err := w.git("", "symbolic-ref", present)
	if err != nil {
		return ""
	}
	return path.Base(ref)
}

// Versions is how many versions are kept of an exercise.
func (w Work) Versions(name string) (n int) {
	for w.has(version(name, n+1)) {
		n++
	}
	return n
}

func version(name string, n int) string { return refs + name + "/" + strconv.Itoa(n) }

// has reports whether there is a ref.
func (w Work) has(ref string) bool {
	_, err := w.git("", "rev-parse", "--quiet", "--verify", ref)
	return err == nil
}

// Solved reports whether an exercise was solved, and Solve notes it.
func (w Work) Solved(name string) bool { return w.has(refs + name + "/solved") }

// Solve notes that an exercise is solved.
func (w Work) Solve(name string) error {
	_, err := w.git("", "update-ref", refs+name+"/solved", "HEAD")
	return err
}

// Keep keeps the files as the next version of an exercise, unless they are those of its last one or
// the original ones.
func (w Work) Keep(name string) error {
	dir, err := os.MkdirTemp("", "course-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tree, err := w.tree(filepath.Join(dir, "index"))
	if err != nil {
		return err
	}
	last := w.Versions(name)
	for _, known := range []string{"HEAD", version(name, last)} {
		if same, err := w.git("", "rev-parse", known+"^{tree}"); err == nil && same == tree {
			return w.goTo(name)
		}
	}
	commit, err := w.git("", "-c", "user.name=course", "-c", "user.email=course@localhost",
		"commit-tree", tree, "-p", "HEAD", "-m", "course: "+name)
	if err != nil {
		return err
	}
	if _, err := w.git("", "update-ref", version(name, last+1), commit); err != nil {
		return err
	}
	return w.goTo(name)
}

// tree writes the files as they are now, by a copy of the index, and returns their id.
func (w Work) tree(index string) (string, error) {
	original, err := w.git("", "rev-parse", "--path-format=absolute", "--git-path", "index")
	if err != nil {
		return "", err
	}
	known, err := os.ReadFile(original) //nolint:gosec // git's
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(index, known, 0o600); err != nil { //nolint:gosec // in a folder of ours
		return "", err
	}
	if _, err := w.git(index, "add", "--all"); err != nil {
		return "", err
	}
	return w.git(index, "write-tree")
}

func (w Work) goTo(name string) error {
	_, err := w.git("", "symbolic-ref", present, refs+name)
	return err
}

// Begin keeps what was written for the exercise before. Then it brings a version of another back,
// or with 0 the original files.
func (w Work) Begin(name string, n int) error {
	at := w.At()
	if at == "" {
		at = "before"
	}
	if err := w.Keep(at); err != nil {
		return err
	}
	if n > 0 && !w.has(version(name, n)) {
		return fmt.Errorf("no version %d is kept of %s", n, name)
	}
	// All files that are not ignored are in the version that was kept.
	steps := [][]string{{"add", "--all"}, {"read-tree", "--reset", "-u", "HEAD"}}
	if n > 0 {
		steps = append(steps, []string{"cherry-pick", "--no-commit", version(name, n)})
	}
	steps = append(steps, []string{"reset", "--quiet"})
	var failure error
	for _, step := range steps {
		if _, err := w.git("", step...); err != nil {
			failure = errors.Join(failure, err)
		}
	}
	return errors.Join(failure, w.goTo(name))
}
