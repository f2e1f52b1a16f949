package tour

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"petstore/e2e/planted"
)

// With -update patches are merged if lines around theirs have changed, and nothing else is tried:
// go -C e2e test ./tour -update
var update = flag.Bool("update", false, "renew the patches of the solutions")

const repository = "../.."

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clone is a fresh copy of the service as it is in the working tree, in a repository of its own.
type clone struct {
	t   *testing.T
	dir string
}

func newClone(t *testing.T) *clone {
	t.Helper()
	c := &clone{t, filepath.Join(t.TempDir(), "petstore")}
	root, err := filepath.Abs(repository)
	must(t, err)
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names, err := list.Output()
	must(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(c.dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(c.dir, name), content, 0o600))
	}
	c.git("init", "-q")
	// The objects of the real repository let git merge a patch whose surroundings have changed.
	objects := exec.Command("git", "rev-parse", "--path-format=absolute", "--git-path", "objects")
	objects.Dir = root
	path, err := objects.Output()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.dir, ".git/objects/info/alternates"), path, 0o600))
	c.git("add", "-A")
	c.git("-c", "user.name=tour", "-c", "user.email=tour@example.com", "commit", "-q", "-m",
		"the working tree")
	return c
}

// run runs git in the copy.
func (c *clone) run(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = c.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *clone) git(args ...string) string {
	c.t.Helper()
	out, err := c.run(args...)
	if err != nil {
		c.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// solution is a patch of an exercise. Its text begins with what it does; of a wrong one, the next
// line is what the check says of it.
type solution struct {
	Exercise
	kind, path, does, says string
}

func (s solution) String() string { return s.Name + "/" + s.kind }

// solutions are those of an exercise by their names: two right ones, other and right, and then the
// wrong ones, of which tempting is the first.
func (e Exercise) solutions(t *testing.T) (found []solution) {
	t.Helper()
	patches, err := filepath.Glob(filepath.Join(repository, e.Solution("*")))
	must(t, err)
	for _, patch := range patches {
		text, err := os.ReadFile(patch)
		must(t, err)
		lines := strings.SplitN(string(text), "\n", 3)
		_, says, isWrong := strings.Cut(lines[1], "says: ")
		kind := strings.TrimSuffix(filepath.Base(patch), ".patch")
		s := solution{Exercise: e, kind: kind, path: e.Solution(kind), does: lines[0], says: says}
		if isWrong != (len(found) >= 2) || len(s.does) > 100 {
			t.Errorf("%v does not begin with what it does, and what the check says of it", s)
		}
		found = append(found, s)
	}
	return found
}

// apply applies a solution. With -update, one whose surroundings have changed is merged.
func (c *clone) apply(t *testing.T, s solution) {
	t.Helper()
	patch := filepath.Join(c.dir, s.path)
	out, err := c.run("apply", "-C1", "--index", patch)
	if err != nil && *update {
		out, err = c.run("apply", "--3way", patch)
	}
	if err != nil {
		t.Fatalf("%v does not apply to the service as it is now: %v\n%s", s, err, out)
	}
}

// moved is what differs in a patch when its lines are elsewhere, and the same.
var moved = regexp.MustCompile(`(?m)^(index|@@) .*$`)

// renew writes the patch of what was applied last, unless its lines have only moved; the text above
// the changes stays.
func (c *clone) renew(t *testing.T, s solution) {
	t.Helper()
	if s.on == nil {
		return // it is of a naive program, which changes with its patches
	}
	path := filepath.Join(repository, s.path)
	old, err := os.ReadFile(path)
	must(t, err)
	text, _, _ := strings.Cut(string(old), "diff --git ")
	patch := text + c.git("diff", "--cached", "--no-ext-diff", "--no-color", "-U1")
	if moved.ReplaceAllString(patch, "") != moved.ReplaceAllString(string(old), "") {
		must(t, os.WriteFile(path, []byte(patch), 0o600))
	}
}

// TestTheSolutionsApply applies all of them to the service as it is.
func TestTheSolutionsApply(t *testing.T) {
	c := newClone(t)
	for _, e := range Exercises {
		t.Run(e.Name, func(t *testing.T) {
			for _, s := range e.solutions(t) {
				c.git("reset", "-q", "--hard")
				c.apply(t, s)
				if *update {
					c.renew(t, s)
				}
			}
		})
	}
}

// TestTheChecksAreFairAndStrict sees the checks of some exercises refuse the service as it is, take
// both right solutions, and say of each wrong one what its patch says.
func TestTheChecksAreFairAndStrict(t *testing.T) {
	if *update {
		t.Skip("-update only renews files")
	}
	for _, e := range planted.Some(t.Name(), 3, Exercises) {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			for _, s := range e.solutions(t) {
				c.apply(t, s)
				c.judge(t, s)
				c.git("reset", "-q", "--hard")
			}
			c.mustSayMore(t, e.Check(c.dir), "the original code", "")
		})
	}
}

// judge sees what a check says of a solution, and the test fail that the right one breaks.
func (c *clone) judge(t *testing.T, s solution) {
	t.Helper()
	err := s.Check(c.dir)
	if s.says != "" {
		c.mustSayMore(t, err, s.String(), s.says)
		return
	}
	if err != nil {
		t.Errorf("%v is refused: %v", s, err)
	}
	if s.kind == "right" && s.Breaks != "" && goTest(c.dir, overlay{}, s.Breaks) == nil {
		t.Errorf("%s passes with %v", s.Breaks, s)
	}
}

// mustSayMore wants the error of a check: the words, or any that is none of the compiler's.
func (c *clone) mustSayMore(t *testing.T, err error, of, words string) {
	t.Helper()
	_, isBuild := errors.AsType[*buildError](err)
	if err == nil || isBuild && words == "" || !strings.Contains(err.Error(), words) {
		t.Errorf("of %s the check says\n%v\nwant\n%s", of, err, words)
	}
}

// pages are the documents of the course. A sitting has the place of its number.
var pages = []string{
	"tour.md", "tour-request.md", "tour-limit.md", "tour-store.md", "tour-teacher.md",
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs", name))
	must(t, err)
	return string(text)
}

// TestEveryExerciseIsInTheCourse: in its sitting by the commands that begin and check it, and on
// the teacher's page with its tempting solution.
func TestEveryExerciseIsInTheCourse(t *testing.T) {
	folders := map[string]bool{"try": true}
	for _, e := range Exercises {
		page := readPage(t, pages[e.Sitting])
		for _, want := range []string{"try -begin " + e.Name, "`try " + e.Name + "`"} {
			if !strings.Contains(page, want) {
				t.Errorf("docs/%s lacks %s", pages[e.Sitting], want)
			}
		}
		tempting := e.solutions(t)[2]
		row := "| `" + e.Name + "` | " + tempting.does + " |"
		if !strings.Contains(readPage(t, "tour-teacher.md"), row) {
			t.Errorf("docs/tour-teacher.md lacks %s", row)
		}
		if e.Hint == "" {
			t.Errorf("%s lacks a hint", e.Name)
		}
		folders[e.Name] = true
	}
	entries, err := os.ReadDir(".")
	must(t, err)
	for _, entry := range entries {
		if entry.IsDir() && !folders[entry.Name()] {
			t.Errorf("%s belongs to no exercise", entry.Name())
		}
	}
}

// TestASittingIsShort: it has at most 2,300 words and six exercises. What is to be read of the
// service in a stop has at most 60 lines, and a naive program 50. All pages have at most 7,000
// words. The questions have answers.
func TestASittingIsShort(t *testing.T) {
	all := 0
	for i, page := range pages {
		text := readPage(t, page)
		words := len(strings.Fields(text))
		all += words
		exercises := 0
		for _, e := range Exercises {
			if e.Sitting == i {
				exercises++
			}
		}
		if words > 2_300 || exercises > 6 {
			t.Errorf("docs/%s has %d words and %d exercises", page, words, exercises)
		}
		for stop := range strings.SplitSeq(text, "\n## ") {
			if sum := toRead(t, stop); sum > 60 {
				t.Errorf("docs/%s: %.20s… has %d lines to read", page, stop, sum)
			}
		}
		questions := strings.Count(text, "*A question:*")
		if questions != strings.Count(text, "<details><summary>Answer</summary>\n\n") {
			t.Errorf("docs/%s has %d questions, and as many answers it has not", page, questions)
		}
	}
	if all > 7_000 {
		t.Errorf("the course has %d words, more than 7,000", all)
	}
	programs, err := filepath.Glob("*/main.go")
	must(t, err)
	for _, program := range programs {
		source, err := os.ReadFile(program)
		must(t, err)
		if n := bytes.Count(source, []byte("\n")); n > 50 && program != "try/main.go" {
			t.Errorf("%s has %d lines, more than 50", program, n)
		}
	}
}

// A link of the course names a symbol of a file, such as ledger.charge. It leads to the file,
// where the symbol can be found by its name.
var link = regexp.MustCompile("\\[`([A-Za-z.]+)`\\]\\(\\.\\./([a-z_]+\\.go)\\)")

// toRead is how many lines the symbols have that a stop links to behind "Read".
func toRead(t *testing.T, stop string) (sum int) {
	t.Helper()
	_, reading, _ := strings.Cut(stop, "\n### Read")
	reading, _, _ = strings.Cut(reading, "\n### ")
	for _, match := range link.FindAllStringSubmatch(reading, -1) {
		first, last := lines(t, match[2], match[1])
		sum += last - first + 1
	}
	return sum
}

// TestTheLinksLeadToWhatTheyName looks for the symbol of each link in its file.
func TestTheLinksLeadToWhatTheyName(t *testing.T) {
	links := 0
	for _, page := range pages {
		text := readPage(t, page)
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			links++
			if first, _ := lines(t, match[2], match[1]); first == 0 {
				t.Errorf("docs/%s: there is no %s in %s", page, match[1], match[2])
			}
		}
		if strings.Contains(text, ".go#L") {
			t.Errorf("docs/%s has a link to lines, which move", page)
		}
	}
	if links == 0 {
		t.Error("the course names nothing of the service")
	}
}

// lines are the first and the last line of a symbol of a file as gofmt leaves it, its comment
// included, or 0 and 0.
func lines(t *testing.T, file, symbol string) (first, last int) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(repository, file))
	must(t, err)
	begins := regexp.MustCompile(`^((func|type|const|var) |\t)` + symbol + `\b`)
	if kind, name, isMethod := strings.Cut(symbol, "."); isMethod {
		begins = regexp.MustCompile(`^func \(\w+ \*?` + kind + `\) ` + name + `\(`)
	}
	all := strings.Split(string(source), "\n")
	first = 1 + slices.IndexFunc(all, begins.MatchString)
	if first == 0 {
		return 0, 0
	}
	last = first
	if line := all[first-1]; strings.ContainsAny(line[len(line)-1:], "{(,") { // it goes on
		closes := regexp.MustCompile(`^` + strings.Repeat(`\t`, strings.Count(line, "\t")) + `[)}]`)
		last += 1 + slices.IndexFunc(all[first:], closes.MatchString)
	}
	for strings.HasPrefix(strings.TrimSpace(all[first-2]), "//") {
		first--
	}
	return first, last
}
