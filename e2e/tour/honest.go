package tour

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lie is a change after which the service does not do what it says.
type lie struct{ name, file, old, new string }

// lies are what the test of the exercise honest has to find. Both make creates faster.
var lies = []lie{
	{
		name: "SQLite does not sync each commit", file: "sqlite.go",
		old: `"_pragma=synchronous(FULL)", "_pragma=fullfsync(1)"`,
		new: `"_pragma=synchronous(NORMAL)"`,
	},
	{
		name: "clients are answered while the commit is under way", file: "store.go",
		old: "	results, err := s.engine.write(ctx, t.statements)\n",
		new: `	results, err := make([]result, len(t.statements)), error(nil)
	for i := range results {
		pets := max(1, int64(len(t.pets)))
		results[i] = result{lastID: pets, affected: pets}
	}
	go func() { _, _ = s.engine.write(context.WithoutCancel(ctx), t.statements) }()
`,
	},
}

// checkHonest wants a test that passes on the service as it is, and fails on each lie.
func checkHonest(_ Exercise, root string) error {
	const name = "TestTheCommitIsHonest"
	test := overlay{"honest_test.go": filepath.Join(root, "honest_test.go")}
	if _, err := os.Stat(test["honest_test.go"]); err != nil {
		return errors.New("there is no honest_test.go in the root yet")
	}
	if err := checkAlone(root, all, test, name); err != nil {
		return fmt.Errorf("%s on the service as it is: %w", name, err)
	}
	var missed []string
	for _, lie := range lies {
		err := lie.check(root, test, name)
		if _, isBuild := errors.AsType[*buildError](err); isBuild {
			return err
		}
		if err == nil {
			missed = append(missed, lie.name)
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%s passes although %s. Which line of which file decides about that?",
			name, strings.Join(missed, ", and although "))
	}
	return nil
}

// check runs the test on a service that lies.
func (l lie) check(root string, test overlay, name string) error {
	dir, err := os.MkdirTemp("", "lie-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lying := filepath.Join(dir, l.file)
	if err := l.tell(filepath.Join(root, l.file), lying); err != nil {
		return &buildError{err.Error()}
	}
	return checkAlone(root, all, overlay{
		l.file: lying, "honest_test.go": test["honest_test.go"],
	}, name)
}

// tell copies a file, with the lie in it.
func (l lie) tell(from, to string) error {
	source, err := os.ReadFile(from) //nolint:gosec // of the repository
	if err != nil {
		return err
	}
	if strings.Count(string(source), l.old) != 1 {
		return fmt.Errorf("%s does not have %q once, in the place of which the lie belongs", l.file,
			l.old)
	}
	return os.WriteFile(to, []byte(strings.Replace(string(source), l.old, l.new, 1)), 0o600)
}
