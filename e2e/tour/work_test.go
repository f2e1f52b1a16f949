package tour

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNothingThatWasWrittenIsLost goes on, back, and begins anew, with changed, new, deleted and
// staged files, and finds each version again.
func TestNothingThatWasWrittenIsLost(t *testing.T) {
	if *update {
		t.Skip("-update only renews files")
	}
	t.Parallel()
	c := newClone(t)
	work := Work{Root: c.dir}
	path := func(name string) string { return filepath.Join(c.dir, name) }
	write := func(name, text string) { must(t, os.WriteFile(path(name), []byte(text), 0o600)) }
	read := func(name string) string {
		text, err := os.ReadFile(path(name))
		if err != nil {
			return ""
		}
		return string(text)
	}
	original := read("auth.go")
	want := func(what string, files map[string]string) {
		t.Helper()
		for name, text := range files {
			if got := read(name); got != text {
				t.Errorf("%s: %s holds %.30q, want %.30q", what, name, got, text)
			}
		}
	}
	clean := map[string]string{"auth.go": original, "new.go": ""}
	write("auth.go", "before the course")
	write("petstore.db", "a database")
	must(t, work.Begin("header", 0))
	want("at the first exercise", clean)

	first := map[string]string{
		"auth.go":   "first",
		"new.go":    "new",
		"limits.go": "",
		"forced.db": "x",
	}
	for name, text := range first {
		write(name, text)
	}
	must(t, os.Remove(path("limits.go")))
	c.git("add", "--force", "forced.db", "auth.go")
	must(t, work.Begin("secret", 0))
	want("at the second exercise", clean)
	if read("limits.go") == "" {
		t.Error("a file that was deleted in one exercise is missing in the next")
	}
	if at := work.At(); at != "secret" {
		t.Errorf("at %q, want secret", at)
	}
	must(t, work.Begin("header", 1))
	want("back at the first", first)

	write("auth.go", "second")
	must(t, work.Keep("header")) // as each check does
	must(t, work.Keep("header"))
	write("auth.go", "third")
	must(t, work.Begin("header", 0))
	want("anew", clean)
	for n, text := range []string{"first", "second", "third"} {
		must(t, work.Begin("header", n+1))
		want("version "+text, map[string]string{"auth.go": text, "new.go": "new"})
	}
	if n := work.Versions("header"); n < 3 {
		t.Errorf("%d versions are kept", n)
	}
	must(t, work.Begin("before", 1))
	want("before the course", map[string]string{"auth.go": "before the course", "new.go": ""})

	if err := work.Begin("header", 99); err == nil || !strings.Contains(err.Error(), "no version") {
		t.Errorf("a version that is not there: %v", err)
	}

	// What cannot be kept is not thrown away either.
	write("auth.go", "unsaved")
	must(t, os.WriteFile(path(".git/refs/course/before/2.lock"), nil, 0o600))
	if err := work.Begin("secret", 0); err == nil {
		t.Error("it goes on although nothing can be kept")
	}
	want("after a failure", map[string]string{"auth.go": "unsaved", "petstore.db": "a database"})
	if status := c.git("status", "--short", "auth.go"); status != " M auth.go\n" {
		t.Errorf("git status says %q", status)
	}
}
