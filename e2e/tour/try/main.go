// Try is the command of the course in docs/tour.md: go -C e2e run ./tour/try NAME checks an
// exercise. With -begin it goes to one, with -again it starts one anew, and it keeps what was
// written. Without a name it lists the exercises.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"petstore/e2e/tour"
)

func main() {
	goTo := flag.Bool("begin", false, "go to an exercise, as you left it; NAME/2 is its version 2")
	again := flag.Bool("again", false, "go to an exercise, and start anew")
	hint := flag.Bool("hint", false, "show a hint")
	solution := flag.Bool("solution", false, "show two solutions")
	flag.Parse()
	root, err := tour.Root()
	if err != nil {
		fail(err)
	}
	work := tour.Work{Root: root}
	if flag.NArg() == 0 {
		list(work)
		return
	}
	name, number, isVersion := strings.Cut(flag.Arg(0), "/")
	exercise, ok := tour.Find(name)
	version := work.Versions(name)
	switch {
	case flag.NArg() > 1:
		fail(fmt.Errorf("one exercise at a time, and flags before it; what is %q?", flag.Arg(1)))
	case !ok && version == 0:
		fmt.Printf("there is no exercise %q; there are:\n\n", name)
		list(work)
		os.Exit(2)
	case isVersion:
		if version, err = strconv.Atoi(number); err != nil || version < 1 {
			fail(fmt.Errorf("%q is no version", flag.Arg(0)))
		}
	}
	switch {
	case *again:
		err = begin(work, name, 0)
	case *goTo:
		err = begin(work, name, version)
	case !ok || isVersion:
		err = fmt.Errorf("try -begin %s goes there", flag.Arg(0))
	case *hint:
		fmt.Println(exercise.Hint)
	case *solution:
		err = showSolutions(root, exercise)
	default:
		err = check(root, work, exercise)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Println(err)
	os.Exit(1)
}

// begin goes to a version of an exercise, or with 0 to the original code.
func begin(work tour.Work, name string, version int) error {
	if err := work.Begin(name, version); err != nil {
		return err
	}
	if version > 0 {
		fmt.Printf("you are at %s, with version %d of what you have written\n", name, version)
	} else {
		fmt.Printf("you are at %s, with the original code\n", name)
	}
	return nil
}

// list shows the exercises, and of each whether it is solved and how many versions are kept.
func list(work tour.Work) {
	at := work.At()
	for _, e := range tour.Exercises {
		line := fmt.Sprintf("%d  %-8s %-46s", e.Sitting, e.Name, e.Task)
		if work.Solved(e.Name) {
			line += " solved"
		}
		if n := work.Versions(e.Name); n > 0 {
			line += fmt.Sprintf(" (%d kept)", n)
		}
		if e.Name == at {
			line += " <- you are here"
		}
		fmt.Println(strings.TrimRight(line, " "))
	}
}

// check keeps what was written, and checks it.
func check(root string, work tour.Work, e tour.Exercise) error {
	if at := work.At(); at != "" && at != e.Name {
		fmt.Printf("you come from %s, with its changes; try -again %s begins without them\n", at,
			e.Name)
	}
	if err := work.Keep(e.Name); err != nil {
		fmt.Println("what you have written cannot be kept, since git does not work here:", err)
	}
	if err := e.Check(root); err != nil {
		return fmt.Errorf("not yet: %w", err)
	}
	fmt.Println("solved")
	return work.Solve(e.Name)
}

func showSolutions(root string, e tour.Exercise) error {
	for _, kind := range []string{"right", "other"} {
		patch, err := os.ReadFile(filepath.Join(root, e.Solution(kind)))
		if err != nil {
			return err
		}
		fmt.Println(string(patch))
	}
	return nil
}
