package main

import (
	"cmp"
	"fmt"
	"go/ast"
	gobuild "go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// orderTable names the files in the order in which a newcomer reads them: first the service, then
// what is beside it. Each may use what is defined in the files that its line names, and in no
// other. So nothing leads from a file back to itself.
var orderTable = []orderLine{
	{"main", "commands commands_keys commands_pets backup flags operator sqlite rqlite schema " +
		"files disk_unix disk_other handlers auth keys usage limits store memory metrics model"},
	{"handlers", "auth keys usage limits store memory metrics model"},
	{"auth", "keys usage limits store memory metrics model"},
	{"limits", "model"},
	{"store", "memory metrics model"},
	{"model", ""},
	{"memory", "model"},
	{"schema", "store memory metrics model"},
	{"keys", "usage limits store memory metrics model"},
	{"usage", "limits store memory metrics model"},
	{"metrics", ""},
	{"operator", "handlers auth keys usage limits store memory metrics model"},
	{"sqlite", "schema files store memory metrics model disk_unix disk_other"},
	{"rqlite", "schema store memory metrics model"},
	{"flags", "handlers auth keys usage limits store memory metrics model"},
	{"commands", "commands_keys commands_pets backup flags sqlite rqlite schema files disk_unix " +
		"disk_other handlers auth keys usage limits store memory metrics model"},
	{"commands_keys", "flags handlers auth keys usage limits store memory metrics model"},
	{"commands_pets", "backup flags sqlite rqlite schema files disk_unix disk_other handlers " +
		"auth keys usage limits store memory metrics model"},
	{"backup", "flags sqlite rqlite schema files disk_unix disk_other handlers auth keys usage " +
		"limits store memory metrics model"},
	{"files", "disk_unix disk_other"},
	{"disk_unix", ""},
	{"disk_other", ""},
}

type orderLine struct{ file, uses string }

// inService is how many files of the table are the service.
const inService = 6

// orderUses returns the files that each file may use, itself among them.
func orderUses() map[string][]string {
	uses := map[string][]string{}
	for _, line := range orderTable {
		uses[line.file] = append(strings.Fields(line.uses), line.file)
	}
	return uses
}

func TestEveryFileUsesOnlyTheFilesItMay(t *testing.T) {
	sources := map[string]string{}
	paths, err := filepath.Glob("*.go")
	must(t, err)
	for _, path := range paths {
		isHere, err := gobuild.Default.MatchFile(".", path) // and not of another system alone
		must(t, err)
		if name := strings.TrimSuffix(path, ".go"); isHere && !strings.HasSuffix(name, "_test") {
			sources[name] = readText(t, path)
		}
	}
	for _, line := range orderTable {
		if !slices.Contains(paths, line.file+".go") {
			t.Errorf("%s is in the table and not in the folder", line.file)
		}
	}
	for _, problem := range orderProblems(t, sources) {
		t.Error(problem)
	}
}

func TestNoFileLeadsBackToItself(t *testing.T) {
	uses := orderUses()
	for file := range uses {
		for _, used := range uses[file] {
			for _, further := range uses[used] {
				if used != file && further == file || !slices.Contains(uses[file], further) {
					t.Errorf("%s uses %s, which uses %s", file, used, further)
				}
			}
		}
	}
}

// TestTheDocumentsNameTheFilesInTheirOrder compares the package comment, the README, the design,
// and the tour with the table.
func TestTheDocumentsNameTheFilesInTheirOrder(t *testing.T) {
	for i, headings := range [][]string{
		{"| the service |", "which a newcomer reads them:\n//\n", "In reading order",
			"in their reading order, are:\n"},
		{"| beside it |", "one thing that can be read alone:\n//\n", "Beside it stand",
			"The files beside it are:\n"},
	} {
		lines := orderTable[:inService]
		if i == 1 {
			lines = orderTable[inService:]
		}
		var want []string
		for _, line := range lines {
			want = append(want, line.file+".go")
		}
		for path, heading := range map[string]string{
			"main.go":        headings[1],
			"README.md":      headings[0] + " holds |\n",
			"docs/design.md": headings[2],
			"docs/tour.md":   headings[3],
		} {
			_, list, _ := strings.Cut(readText(t, path), heading)
			list, _, _ = strings.Cut(strings.ReplaceAll(list, "//\n", "\n"), "\n\n")
			names := slices.Compact(regexp.MustCompile(`\w+\.go`).FindAllString(list, -1))
			wantEqual(t, names, want, "what is named by ", path)
		}
	}
}

// orderProblems returns the uses that the table forbids, and the files that it lacks.
func orderProblems(t *testing.T, sources map[string]string) (problems []string) {
	t.Helper()
	fset := token.NewFileSet()
	mayUse := orderUses()
	var files []*ast.File
	for name, source := range sources {
		file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
		must(t, err)
		files = append(files, file)
		if mayUse[name] == nil {
			problems = append(problems, name+" is not in the table of order_test.go")
		}
	}
	pkg, objects := orderObjects(t, fset, files)
	for identifier, object := range objects {
		if object.Pkg() != pkg { // another package's, or the language's
			continue
		}
		place, home := fset.Position(identifier.Pos()), fset.Position(object.Pos()).Filename
		if !slices.Contains(mayUse[place.Filename], home) {
			problem := fmt.Sprintf("%v: %s is defined in %s", place, identifier.Name, home)
			problems = append(problems, problem)
		}
	}
	slices.Sort(problems)
	return problems
}

// orderObjects finds what every identifier of the files stands for. What they import of the
// standard library is taken from the build cache. Other modules are left out: nothing that they
// define leads back to this package.
func orderObjects(t *testing.T, fset *token.FileSet, files []*ast.File) (
	*types.Package, map[*ast.Ident]types.Object) {
	t.Helper()
	list := []string{"list", "-export", "-f", "{{.ImportPath}} {{.Export}}", "unsafe"}
	for _, file := range files {
		for _, imported := range file.Imports {
			if path := strings.Trim(imported.Path.Value, `"`); !strings.Contains(path, ".") {
				list = append(list, path)
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", list...).Output()
	must(t, err)
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	open := func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	}
	config := types.Config{
		Importer: importer.ForCompiler(fset, "gc", open),
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

func TestForbiddenUsesAreFound(t *testing.T) {
	// A row has a file, what is written in it, and what is reported.
	for row, want := range rowsOf(t, `
		model: func f(auth struct{ known int }) {} => nothing
		handlers: func f(s *store) { s.keys(); _ = known.name } => nothing
		limits: func f() { main() } => limits:2:12: main is defined in main
		limits: func f(key) {} => limits:2:8: key is defined in auth
		limits: var f = known => limits:2:9: known is defined in auth
		usage: func f(s *store) { s.keys() } => usage:2:22: keys is defined in auth
		handlers: type f file => handlers:2:8: file is defined in sqlite
		commands: type f file => nothing
		util: func f() {} => util is not in the table of order_test.go`) {
		file, source, _ := strings.Cut(row, ": ")
		sources := map[string]string{
			"main": "package main\nfunc main() {}",
			"auth": "package main\ntype key struct{ name string }\nvar known key\n" +
				"func (s *store) keys() {}",
			"sqlite": "package main\ntype file struct{ store }",
			"store":  "package main\ntype store struct{}",
		}
		sources[file] = "package main\n" + source
		problems := strings.Join(orderProblems(t, sources), "; ")
		wantEqual(t, cmp.Or(problems, "nothing"), want, "what is reported of ", row)
	}
}
