package tour

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// With -update the links of docs/tour.md get the lines that their symbols have now, patches are
// merged if lines around theirs have changed, and nothing else is tried: go -C e2e test ./tour
// -update
var update = flag.Bool("update", false, "renew the links of docs/tour.md and the patches")

const repository = "../.."

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// String names the exercise in failures, its stop first.
func (e Exercise) String() string { return fmt.Sprintf("stop %d, exercise %s", e.Stop, e.Name) }

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

// apply applies the solution of an exercise. With -update, a solution whose surroundings have
// changed is merged.
func (c *clone) apply(t *testing.T, e Exercise) {
	t.Helper()
	patch := filepath.Join(c.dir, e.Solution())
	out, err := c.run("apply", "-C1", "--index", patch)
	if err != nil && *update {
		out, err = c.run("apply", "--3way", patch)
	}
	if err != nil {
		t.Fatalf("%v: %s does not apply to the service as it is now: %v\n%s", e, e.Solution(), err,
			out)
	}
}

// moved is what differs in a patch when its lines are elsewhere, and the same.
var moved = regexp.MustCompile(`(?m)^(index|@@) .*$`)

// renew writes the patch of what was applied last, unless its lines have only moved; the text above
// the changes stays.
func (c *clone) renew(t *testing.T, e Exercise) {
	t.Helper()
	path := filepath.Join(repository, e.Solution())
	old, err := os.ReadFile(path)
	must(t, err)
	text, _, _ := strings.Cut(string(old), "diff --git ")
	patch := text + c.git("diff", "--cached", "--no-ext-diff", "--no-color")
	if moved.ReplaceAllString(patch, "") != moved.ReplaceAllString(string(old), "") {
		must(t, os.WriteFile(path, []byte(patch), 0o600))
	}
}

// TestEverySolutionSolvesItsExercise sees the test of each exercise fail on a fresh copy of the
// service, and pass once the solution was applied.
func TestEverySolutionSolvesItsExercise(t *testing.T) {
	t.Parallel()
	waiting := make(chan Exercise, len(Exercises))
	for _, e := range Exercises {
		waiting <- e
	}
	close(waiting)
	for worker := range 2 {
		t.Run(fmt.Sprint("worker ", worker+1), func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			for e := range waiting {
				start := time.Now()
				t.Run(fmt.Sprintf("stop %d/%s", e.Stop, e.Name), func(t *testing.T) { c.try(t, e) })
				progress("%-8s %4.1f s", e.Name, time.Since(start).Seconds())
			}
		})
	}
}

// progress tells a person at a terminal what was done. Go shows what tests print only when their
// package has ended.
func progress(format string, args ...any) {
	terminal, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer terminal.Close()
	_, _ = fmt.Fprintf(terminal, "  "+format+"\n", args...)
}

// try sees an exercise unsolved, and solved by its solution.
func (c *clone) try(t *testing.T, e Exercise) {
	defer c.git("clean", "-q", "-f")
	defer c.git("reset", "-q", "--hard")
	if *update {
		c.apply(t, e)
		c.renew(t, e)
		return
	}
	c.mustFailBefore(t, e)
	c.apply(t, e)
	var out bytes.Buffer
	if err := e.Check(c.dir, &out); err != nil {
		t.Fatalf("%v is not solved by %s: %v\n%s", e, e.Solution(), err, &out)
	}
	c.mustBreak(t, e)
}

// mustFailBefore sees that an exercise is not solved by the service as it is, and that this is not
// because something cannot be built.
func (c *clone) mustFailBefore(t *testing.T, e Exercise) {
	t.Helper()
	var out bytes.Buffer
	err := e.Check(c.dir, &out)
	if err == nil || strings.Contains(out.String(), "[build failed]") {
		t.Fatalf("%v: its check says of the service as it is %v\n%s", e, err, &out)
	}
	if _, err := os.Stat(filepath.Join(c.dir, e.Test())); err != nil {
		return // the check has no test in a file
	}
	for name := range strings.SplitSeq(testNames(c.dir, e), "|") {
		if !strings.Contains(out.String(), "--- FAIL: "+name) {
			t.Errorf("%v: %s does not fail on the service as it is\n%s", e, name, &out)
		}
	}
	source, err := os.ReadFile(filepath.Join(c.dir, e.Test()))
	must(t, err)
	if formatted, err := format.Source(source); err != nil || !bytes.Equal(formatted, source) {
		t.Errorf("%s is not formatted as gofmt does: %v", e.Test(), err)
	}
}

// mustBreak sees the tests of the service fail that the solution of an exercise is said to break.
func (c *clone) mustBreak(t *testing.T, e Exercise) {
	t.Helper()
	if len(e.Breaks) == 0 {
		return
	}
	files := overlay{}
	if e.check == nil {
		// as in Check, so that Go compiles once
		files["tour_"+e.Name+"_test.go"] = filepath.Join(c.dir, e.Test())
	}
	var out bytes.Buffer
	_ = goTest(c.dir, files, strings.Join(e.Breaks, "|"), &out)
	for _, name := range e.Breaks {
		if !strings.Contains(out.String(), "--- FAIL: "+name+" ") {
			t.Errorf("%v: %s does not fail with %s\n%s", e, name, e.Solution(), &out)
		}
	}
}

// TestHarmlessSolutionsKeepTheServicesTests applies all solutions that break no test of the
// service, and runs its whole suite.
func TestHarmlessSolutionsKeepTheServicesTests(t *testing.T) {
	if *update {
		t.Skip("-update only renews files")
	}
	t.Parallel()
	c := newClone(t)
	for _, e := range Exercises {
		if len(e.Breaks) == 0 {
			c.apply(t, e)
		}
	}
	suite := exec.Command("go", "test", "-count=1", "-vet=off", ".")
	suite.Dir = c.dir
	if out, err := suite.CombinedOutput(); err != nil {
		t.Errorf("with all harmless solutions, the service's own tests fail: %v\n%s", err, out)
	}
	progress("the service's own tests, with all solutions that break none")
}

// TestEveryExerciseIsInTheTour: by the command that checks it, its solution, and its files.
func TestEveryExerciseIsInTheTour(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "docs/tour.md"))
	must(t, err)
	used := map[string]bool{}
	for _, e := range Exercises {
		for _, want := range []string{"./tour/try " + e.Name + "`", "(../" + e.Solution() + ")"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("docs/tour.md lacks %s of %v", want, e)
			}
		}
		if e.Question == "" || slices.Contains(e.Hints[:], "") {
			t.Errorf("%v lacks a question or a hint", e)
		}
		used[filepath.Base(e.Test())], used[filepath.Base(e.Solution())] = true, true
	}
	patches, err := filepath.Glob("stop*/*.patch")
	must(t, err)
	tests, err := filepath.Glob("stop*/*.go.txt")
	must(t, err)
	for _, file := range append(patches, tests...) {
		if !used[filepath.Base(file)] {
			t.Errorf("%s belongs to no exercise", file)
		}
	}
}

// TestAStopIsShort: a naive program has at most 40 lines, and what is to be read of the service at
// most 50.
func TestAStopIsShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "docs/tour.md"))
	must(t, err)
	stops := strings.Split(string(text), "\n## ")[1:]
	seen := 0
	for _, stop := range stops {
		number, _, numbered := strings.Cut(stop, ". ")
		if !numbered || len(number) != 1 {
			continue
		}
		seen++
		program, err := os.ReadFile("stop" + number + "/main.go")
		must(t, err)
		if n := bytes.Count(program, []byte("\n")); n > 40 {
			t.Errorf("the naive program of stop %s has %d lines, more than 40", number, n)
		}
		_, reading, _ := strings.Cut(stop, "\n### Read")
		reading, _, _ = strings.Cut(reading, "\n### ")
		sum := 0
		for _, match := range link.FindAllStringSubmatch(reading, -1) {
			first, last := lines(t, match[2], match[1])
			sum += last - first + 1
		}
		if sum == 0 || sum > 50 {
			t.Errorf("stop %s has %d lines of the service to read, more than 50 or none", number,
				sum)
		}
	}
	if seen != 6 {
		t.Errorf("docs/tour.md has %d stops, not 6", seen)
	}
}

// A link of the tour names a symbol of a file, such as limiter.charge, or its head: the comment
// above the imports.
var link = regexp.MustCompile("\\[`([A-Za-z.]+)`\\]\\(\\.\\./([a-z_]+\\.go)#L(\\d+)-L(\\d+)\\)")

// TestTheLinksLeadToWhatTheyName compares the lines in the links with those that the symbols have.
// With -update it puts the right ones there.
func TestTheLinksLeadToWhatTheyName(t *testing.T) {
	path := filepath.Join(repository, "docs/tour.md")
	text, err := os.ReadFile(path)
	must(t, err)
	links := 0
	renewed := link.ReplaceAllStringFunc(string(text), func(found string) string {
		links++
		match := link.FindStringSubmatch(found)
		first, last := lines(t, match[2], match[1])
		if first == 0 {
			t.Errorf("there is no %s in %s", match[1], match[2])
			return found
		}
		right := fmt.Sprintf("[`%s`](../%s#L%d-L%d)", match[1], match[2], first, last)
		if right != found && !*update {
			t.Errorf("%s should be %s; go -C e2e test ./tour -update puts that right", found, right)
		}
		return right
	})
	if others := strings.Count(string(text), "go#L"); links == 0 || others != links {
		t.Errorf("%d links to lines, of which %d name what is there", others, links)
	}
	if *update && !t.Failed() {
		must(t, os.WriteFile(path, []byte(renewed), 0o600))
	}
}

// lines are the first and the last line of a symbol, its comment included, or 0 and 0.
func lines(t *testing.T, file, symbol string) (first, last int) {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, filepath.Join(repository, file), nil,
		parser.ParseComments|parser.SkipObjectResolution)
	must(t, err)
	span := func(comment *ast.CommentGroup, node ast.Node) {
		begin := node.Pos()
		if comment != nil {
			begin = comment.Pos()
		}
		first, last = fset.Position(begin).Line, fset.Position(node.End()).Line
	}
	if symbol == file {
		for _, comment := range parsed.Comments {
			if first == 0 {
				span(nil, comment)
			}
		}
	}
	for _, declaration := range parsed.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if receiver(d)+d.Name.Name == symbol {
				span(d.Doc, d)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				comment, names := specNames(spec)
				for _, name := range names {
					switch {
					case name.Name != symbol:
					case d.Lparen.IsValid():
						span(comment, spec)
					default:
						span(d.Doc, d)
					}
				}
			}
		}
	}
	return first, last
}

// receiver is the type of a method with a point behind it, or "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	kind := d.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if generic, ok := kind.(*ast.IndexListExpr); ok {
		kind = generic.X
	}
	name, _ := kind.(*ast.Ident)
	return name.Name + "."
}

func specNames(spec ast.Spec) (*ast.CommentGroup, []*ast.Ident) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		return s.Doc, []*ast.Ident{s.Name}
	case *ast.ValueSpec:
		return s.Doc, s.Names
	}
	return nil, nil
}
