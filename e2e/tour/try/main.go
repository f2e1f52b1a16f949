// Try checks what a reader of docs/tour.md has made of an exercise: go -C e2e run ./tour/try NAME.
// With -hint 1, 2 or 3 it helps, more each time. Without a name it lists the exercises.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"petstore/e2e/tour"
)

func main() {
	hint := flag.Int("hint", 0, "show hint `1`, 2 or 3: where, what, and nearly the code")
	flag.Parse()
	name := flag.Arg(0)
	if name != "" {
		_ = flag.CommandLine.Parse(flag.Args()[1:]) // -hint may stand behind the name too
	}
	exercise, ok := tour.Find(name)
	switch {
	case name == "":
		list(os.Stdout)
	case flag.NArg() > 0:
		fmt.Fprintf(os.Stderr, "one exercise at a time; what is %q?\n", flag.Arg(0))
		os.Exit(2)
	case !ok:
		fmt.Fprintf(os.Stderr, "there is no exercise %q; there are:\n\n", name)
		list(os.Stderr)
		os.Exit(2)
	case *hint < 0 || *hint > len(exercise.Hints):
		fmt.Fprintf(os.Stderr, "there are hints 1 to %d\n", len(exercise.Hints))
		os.Exit(2)
	case *hint > 0:
		fmt.Println(exercise.Hints[*hint-1])
	case !solved(exercise):
		os.Exit(1)
	}
}

func list(out io.Writer) {
	for _, e := range tour.Exercises {
		_, _ = fmt.Fprintf(out, "%d  %-8s %s\n", e.Stop, e.Name, e.Task)
	}
}

// solved checks an exercise. If it is solved, it shows another solution, and asks what to think
// about next.
func solved(e tour.Exercise) bool {
	root, err := tour.Root()
	if err == nil {
		err = e.Check(root, os.Stdout)
	}
	if err != nil {
		fmt.Printf("\nnot yet: %v\nA hint: go -C e2e run ./tour/try -hint 1 %s\n", err, e.Name)
		return false
	}
	patch, err := os.ReadFile(filepath.Join(root, e.Solution()))
	if err != nil {
		fmt.Println(err)
		return false
	}
	_, solution, _ := strings.Cut(string(patch), "diff --git ")
	fmt.Printf("\nOne solution:\n\ndiff --git %s\nsolved\n\nA question: %s\n", solution, e.Question)
	return true
}
