// Package planted builds copies of the service that have a fault.
package planted

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build copies the service from one folder to another, with changes in one file: texts, each
// followed by what stands in its place. It returns the program that it builds there.
func Build(from, to, file string, changes []string) (program string, err error) {
	if err := copyService(from, to, file, changes); err != nil {
		return "", err
	}
	program = filepath.Join(to, "petstore")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", program, ".")
	build.Dir = to
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}

func copyService(from, to, file string, changes []string) error {
	list := exec.CommandContext(context.Background(), "git", "ls-files", "*.go", "go.mod", "go.sum",
		"web", "schema")
	list.Dir = from
	listing, err := list.Output()
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(listing)) {
		if strings.HasPrefix(name, "e2e/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		text := string(content)
		if name == file {
			text, err = change(text, changes)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		copied := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(copied), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func change(text string, changes []string) (string, error) {
	for i := 0; i < len(changes); i += 2 {
		if strings.Count(text, changes[i]) != 1 {
			return "", fmt.Errorf("it does not have %q once", changes[i])
		}
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	return text, nil
}
