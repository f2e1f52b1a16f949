// Package tour holds the exercises of docs/tour.md and checks solutions of them. Each has a test in stopN, under a
// name that Go does not build there: it belongs to the service's own package. Its solution is the patch beside it.
package tour

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Exercise is one of the two at the end of a stop.
type Exercise struct {
	Stop   int
	Name   string   // also of its files
	Task   string   // in a few words; docs/tour.md has the whole
	Breaks []string // tests of the service that fail, since clients are promised something else; none if harmless
	Lies   []Lie    // of an exercise that asks for a test: what that has to find
}

// Lie is a change after which the service does not do what it says.
type Lie struct{ Name, File, Old, New string }

// Exercises are in the order of the tour, of each stop the easier one first.
var Exercises = []Exercise{
	{Stop: 1, Name: "header", Task: "a header on every response", Breaks: []string{"TestAPetIsReturnedAsItWasCreated"}},
	{Stop: 1, Name: "timeout", Task: "an error code of its own",
		Breaks: []string{"TestCodesAreAClosedList", "TestErrorCodesAreThoseDescribed"}},
	{Stop: 2, Name: "secret", Task: "a key that no format shows"},
	{Stop: 2, Name: "herd", Task: "one read for many who wait"},
	{Stop: 3, Name: "plan", Task: "a new plan",
		Breaks: []string{"TestPlansHaveTheQuotasOfTheSpecification", "TestTheTablesOfThePageAreThoseOfTheService"}},
	{Stop: 3, Name: "leak", Task: "a bucket that refills bit by bit", Breaks: []string{"TestLimitWindows"}},
	{Stop: 4, Name: "hint", Task: "a message that helps"},
	{Stop: 4, Name: "bodies", Task: "a limit on bodies per key"},
	{Stop: 5, Name: "batch", Task: "commits of a bounded size",
		Breaks: []string{"TestNobodyWaitsForMoreThanTwoTransactions", "TestPetsOfOneBatchGetTheirOwnIDs"}},
	{Stop: 5, Name: "honest", Task: "a test that finds a lie", Lies: lies},
	{Stop: 6, Name: "size", Task: "a number that only one engine knows"},
	{Stop: 6, Name: "memory", Task: "a third engine, in memory"},
}

// lies are what the test of the exercise "honest" has to find. Both make creates faster.
var lies = []Lie{
	{
		Name: "SQLite does not sync each commit", File: "sqlite.go",
		Old: `"_pragma=synchronous(FULL)", "_pragma=fullfsync(1)"`, New: `"_pragma=synchronous(NORMAL)"`,
	},
	{
		Name: "clients are answered while the commit is under way", File: "store.go",
		Old: "	results, err := s.engine.write(ctx, statements)\n",
		New: `	results, err := make([]result, len(statements)), error(nil)
	for i := range results {
		results[i] = result{lastID: max(1, n), affected: max(1, n)}
	}
	go func() { _, _ = s.engine.write(context.WithoutCancel(ctx), statements) }()
`,
	},
}

// file is the path, from the root of the repository, of one of the exercise's files.
func (e Exercise) file(suffix string) string {
	return fmt.Sprintf("e2e/tour/stop%d/%s%s", e.Stop, e.Name, suffix)
}

// Test is the file with the exercise's test, and Solution that with its patch.
func (e Exercise) Test() string { return e.file("_test.go.txt") }

// Solution is the file with the exercise's patch.
func (e Exercise) Solution() string { return e.file(".patch") }

// Find finds an exercise by its name.
func Find(name string) (Exercise, bool) {
	for _, e := range Exercises {
		if e.Name == name {
			return e, true
		}
	}
	return Exercise{}, false
}

// Root is the folder of the repository, above that of the module that go run and go test run in.
func Root() (string, error) {
	gomod, err := exec.CommandContext(context.Background(), "go", "env", "GOMOD").Output()
	return filepath.Dir(filepath.Dir(strings.TrimSpace(string(gomod)))), err
}

// Check runs the test of an exercise on the service in a folder, and shows what it prints. The test of an exercise
// with lies is the reader's own: it has to pass on the service as it is, and to fail on each lie.
func (e Exercise) Check(root string, out io.Writer) error {
	if e.Lies == nil {
		return goTest(root, overlay{"tour_" + e.Name + "_test.go": filepath.Join(root, e.Test())}, testNames(root, e), out)
	}
	const name = "TestTheCommitIsHonest"
	if err := mustPass(root, overlay{}, name, out); err != nil {
		return fmt.Errorf("%s on the service as it is: %w", name, err)
	}
	for _, lie := range e.Lies {
		if err := lie.mustBeFound(root, name); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "found: %s\n", lie.Name)
	}
	return nil
}

// mustBeFound is an error unless the test fails on the lie.
func (l Lie) mustBeFound(root, test string) error {
	source, err := os.ReadFile(filepath.Join(root, l.File)) //nolint:gosec // of the repository
	if err != nil {
		return err
	}
	if strings.Count(string(source), l.Old) != 1 {
		return fmt.Errorf("%s does not have %q once, in the place of which the lie belongs", l.File, l.Old)
	}
	dir, err := os.MkdirTemp("", "lie-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lying := filepath.Join(dir, l.File)
	if err := os.WriteFile(lying, []byte(strings.Replace(string(source), l.Old, l.New, 1)), 0o600); err != nil {
		return err
	}
	var printed strings.Builder
	if err := goTest(root, overlay{l.File: lying}, test, &printed); err == nil {
		return fmt.Errorf("%s passes, although %s", test, l.Name)
	}
	if !strings.Contains(printed.String(), "--- FAIL: "+test) {
		return fmt.Errorf("%s cannot be run:\n%s", test, &printed)
	}
	return nil
}

// mustPass is an error unless the test is there and passes.
func mustPass(root string, files overlay, test string, out io.Writer) error {
	var printed strings.Builder
	if err := goTest(root, files, test, io.MultiWriter(out, &printed)); err != nil {
		return err
	}
	if !strings.Contains(printed.String(), "--- PASS: "+test) {
		return fmt.Errorf("there is no test with this name in %s", root)
	}
	return nil
}

// overlay are files that go is to see in a folder: by name, the paths that they are read from.
type overlay map[string]string

// goTest runs tests of the service, as go test -overlay lets it see more files than there are.
func goTest(root string, files overlay, tests string, out io.Writer) error {
	replace := map[string]string{}
	for name, path := range files {
		replace[filepath.Join(root, name)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	list, err := os.CreateTemp("", "overlay-*.json")
	if err != nil {
		return err
	}
	defer os.Remove(list.Name())
	if _, err := list.Write(text); err != nil {
		return err
	}
	if err := list.Close(); err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), "go", "test", //nolint:gosec // tests of the tour
		"-count=1", "-v", "-timeout=2m", "-overlay="+list.Name(), "-run=^("+tests+")$", ".")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("see above for what fails (%w)", err)
	}
	return nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testNames are the tests of an exercise, as -run takes them.
func testNames(root string, e Exercise) string {
	source, _ := os.ReadFile(filepath.Join(root, e.Test())) //nolint:gosec // without it, go test says what is missing
	var names []string
	for _, match := range testFunc.FindAllStringSubmatch(string(source), -1) {
		names = append(names, match[1])
	}
	return strings.Join(names, "|")
}
