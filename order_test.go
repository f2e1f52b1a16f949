package main

// The order of the files, which a newcomer may take for the order to read them
// in, from either end. This is the one place where it stands; the test below it
// holds the code to it.

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// orderTable has a line for each file. A file uses what is defined in the files
// below it, and nothing of those above it.
var orderTable = []orderLine{
	{"main.go", "the process: starts the server, stops it, and runs what runs beside the requests"},
	{"commands.go", "the operator's side: the table of verbs, help, and what every command does"},
	{"backup.go", "the copies: backup, restore, and the import and export of pets"},
	{"flags.go", "the configuration: every flag, with its default, its variable and what is checked of it"},
	{"handlers.go", "the client's side: routes, operations, and how an error becomes a response"},
	{"auth.go", "the keys: their form, which one a request carries, how they are made and ended"},
	{"limits.go", "the limits: how much an account may do, and what becomes of one that will not stop"},
	{"rqlite.go", "an engine: an rqlite cluster, found, asked and asked again over HTTP"},
	{"sqlite.go", "an engine: one SQLite file, with its locks and transactions"},
	{"store.go", "the store: all tables, the pets and the pages of them, on any engine"},
	{"metrics.go", "the instruments: counters and histograms that do not know what they count"},
	{"model.go", "the vocabulary: pets, errors, instants and documents, and pets as JSON"},
}

// orderUsers are the only files that may use a file below them, if not all may:
// who opens the store picks its engine, and nobody else learns which it is.
var orderUsers = map[string][]string{
	"rqlite.go": {"main.go", "commands.go", "backup.go"},
	"sqlite.go": {"main.go", "commands.go", "backup.go"},
}

type orderLine struct{ file, does string }

func TestEveryFileUsesOnlyWhatStandsBelowIt(t *testing.T) {
	fset, files := token.NewFileSet(), []*ast.File{}
	entries, err := os.ReadDir(".")
	mainMust(t, err)
	for _, entry := range entries {
		if name := entry.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			mainMust(t, err)
			files = append(files, file)
		}
	}
	for _, line := range orderTable {
		if !slices.ContainsFunc(entries, func(entry os.DirEntry) bool { return entry.Name() == line.file }) {
			t.Errorf("%s is in the table, as %s, and not in the folder", line.file, line.does)
		}
	}
	for _, problem := range orderProblems(t, fset, files) {
		t.Error(problem)
	}
}

// orderProblems are the uses that the order forbids, and the files it does not know.
func orderProblems(t *testing.T, fset *token.FileSet, files []*ast.File) (problems []string) {
	t.Helper()
	rank := map[string]int{} // 1 is the top
	for i, line := range orderTable {
		rank[line.file] = i + 1
	}
	for _, file := range files {
		if name := fset.Position(file.Package).Filename; rank[name] == 0 {
			problems = append(problems, fmt.Sprintf("%s:1: the file is not in the table of order_test.go", name))
		}
	}
	pkg, uses := orderUses(t, fset, files)
	inOrder := func(a, b *ast.Ident) int { return cmp.Compare(a.Pos(), b.Pos()) }
	for _, identifier := range slices.SortedFunc(maps.Keys(uses), inOrder) {
		object := uses[identifier]
		if object.Pkg() != pkg { // another package's, or the language's
			continue
		}
		place, home := fset.Position(identifier.Pos()), fset.Position(object.Pos()).Filename
		users := orderUsers[home]
		switch {
		case rank[place.Filename] > rank[home]:
			problems = append(problems, fmt.Sprintf("%v: %s is defined in %s, which stands above %s",
				place, identifier.Name, home, place.Filename))
		case place.Filename != home && users != nil && !slices.Contains(users, place.Filename):
			problems = append(problems, fmt.Sprintf("%v: %s is defined in %s, which is only for %s",
				place, identifier.Name, home, strings.Join(users, " and ")))
		}
	}
	return problems
}

// orderUses finds what every identifier of the files stands for. What they import
// of the standard library is taken from the build cache. Other modules are left
// out: nothing that they define leads back to this package.
func orderUses(t *testing.T, fset *token.FileSet, files []*ast.File) (*types.Package, map[*ast.Ident]types.Object) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-f", "{{.ImportPath}} {{.Export}}", "--")
	for _, file := range files {
		for _, imported := range file.Imports {
			if path := strings.Trim(imported.Path.Value, `"`); !strings.Contains(path, ".") {
				list.Args = append(list.Args, path)
			}
		}
	}
	exports := map[string]string{}
	if list.Args[len(list.Args)-1] != "--" {
		list.Stderr = os.Stderr
		out, err := list.Output()
		mainMust(t, err)
		for line := range strings.Lines(string(out)) {
			path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
			exports[path] = file
		}
	}
	config := types.Config{
		Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }),
		Error: func(err error) {
			if !strings.Contains(err.Error(), "could not import modernc.org/") {
				t.Error(err)
			}
		},
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, _ := config.Check("main", fset, files, &info) // its error was one for Error
	return pkg, info.Uses
}

// TestTheOrderIsHeldTo shows the check mistakes of each kind.
func TestTheOrderIsHeldTo(t *testing.T) {
	sources := map[string]string{
		"main.go":   "func main() { (&sqliteFile{}).write() }",
		"auth.go":   "type key struct{ name string }\nfunc (k key) revoke() {}\nconst size = 1\nvar known key\nfunc (s *store) keys() {}",
		"sqlite.go": "type sqliteFile struct{ store }\nfunc (f *sqliteFile) write() { f.read() }",
		"store.go":  "type store struct{}\nfunc (s *store) read() {}",
	}
	for what, c := range map[string]struct{ file, source, want string }{
		"nothing forbidden":              {"model.go", "func f(main int) (auth struct{ name string }) { auth.name = \"\"; main++; return auth }", ""},
		"uses of what stands below":      {"handlers.go", "func f(s *store) { s.keys(); known.revoke(); known.name = \"\" }", ""},
		"a function":                     {"limits.go", "func f() { main() }", "limits.go:2:12: main is defined in main.go, which stands above limits.go"},
		"a type":                         {"limits.go", "func f(key) {}", "limits.go:2:8: key is defined in auth.go, which stands above limits.go"},
		"a type in a type":               {"limits.go", "var m map[string][]*key", "limits.go:2:21: key is defined in auth.go, which stands above limits.go"},
		"a type that is hidden by alias": {"limits.go", "type k = key", "limits.go:2:10: key is defined in auth.go, which stands above limits.go"},
		"a type that is embedded":        {"limits.go", "type account struct{ key }", "limits.go:2:22: key is defined in auth.go, which stands above limits.go"},
		"a constant":                     {"limits.go", "var a [size]int", "limits.go:2:8: size is defined in auth.go, which stands above limits.go"},
		"a variable":                     {"limits.go", "func f() { _ = known }", "limits.go:2:16: known is defined in auth.go, which stands above limits.go"},
		"a method of a type above":       {"limits.go", "func f(i interface{ revoke() }) { i.revoke() }\nvar _ = key.revoke", "limits.go:3:9: key is defined in auth.go, which stands above limits.go; limits.go:3:13: revoke is defined in auth.go, which stands above limits.go"},
		"a method above of a type below": {"limits.go", "func f(s *store) { s.keys() }", "limits.go:2:22: keys is defined in auth.go, which stands above limits.go"},
		"a field":                        {"metrics.go", "var f = known.name", "metrics.go:2:9: known is defined in auth.go, which stands above metrics.go; metrics.go:2:15: name is defined in auth.go, which stands above metrics.go"},
		"the engine":                     {"handlers.go", "func f() { _ = sqliteFile{} }", "handlers.go:2:16: sqliteFile is defined in sqlite.go, which is only for main.go and commands.go and backup.go"},
		"the engine, by who may":         {"commands.go", "func f() { _ = sqliteFile{} }", ""},
		"the engine, from below":         {"model.go", "func f() { _ = sqliteFile{} }", "model.go:2:16: sqliteFile is defined in sqlite.go, which stands above model.go"},
		"a file that nobody knows":       {"util.go", "func f() {}", "util.go:1: the file is not in the table of order_test.go"},
	} {
		t.Run(what, func(t *testing.T) {
			fset, files := token.NewFileSet(), []*ast.File{}
			for _, line := range append([]orderLine{{file: "util.go"}}, orderTable...) {
				source := sources[line.file]
				if line.file == c.file {
					source = c.source
				}
				if source != "" {
					file, err := parser.ParseFile(fset, line.file, "package main\n"+source, parser.SkipObjectResolution)
					mainMust(t, err)
					files = append(files, file)
				}
			}
			if got := strings.Join(orderProblems(t, fset, files), "; "); got != c.want {
				t.Errorf("it reports %q, want %q", got, c.want)
			}
		})
	}
}
