// Try checks what a reader of docs/tour.md has made of an exercise: go -C e2e run ./tour/try NAME. Without a name
// it lists the exercises.
package main

import (
	"fmt"
	"os"

	"petstore/e2e/tour"
)

func main() {
	if len(os.Args) < 2 {
		for _, e := range tour.Exercises {
			fmt.Printf("%d  %-8s %s\n", e.Stop, e.Name, e.Task)
		}
		return
	}
	exercise, ok := tour.Find(os.Args[1])
	if !ok {
		fmt.Fprintf(os.Stderr, "there is no exercise %q\n", os.Args[1])
		os.Exit(2)
	}
	root, err := tour.Root()
	if err == nil {
		err = exercise.Check(root, os.Stdout)
	}
	if err != nil {
		fmt.Printf("\nnot yet: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("\nsolved")
}
