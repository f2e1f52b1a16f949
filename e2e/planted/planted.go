// Package planted builds copies of the service that have a fault, or another clock, and says how
// much of what could be tried is tried.
package planted

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Changes are texts of a file, each followed by what stands in its place, by the file's name.
type Changes map[string][]string

// Build copies the service from one folder to another, with changes in one file: texts, each
// followed by what stands in its place. It returns the program that it builds there.
func Build(from, to, file string, changes []string) (program string, err error) {
	return BuildAhead(from, to, 0, Changes{file: changes})
}

// BuildAhead is Build with changes in several files, and with a clock that is ahead.
func BuildAhead(from, to string, by time.Duration, changes Changes) (program string, err error) {
	if err := copyService(from, to, changes); err != nil {
		return "", err
	}
	if by != 0 {
		if err := setAhead(to, by); err != nil {
			return "", err
		}
	}
	program = filepath.Join(to, "petstore")
	build := exec.CommandContext(context.Background(), "go", "build", "-gcflags=-N -l -dwarf=false",
		"-ldflags=-s -w", "-o", program, ".")
	build.Dir = to
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}

// Soak is how many times as much as in .ci/run the tests do: SOAK in the environment, or 1.
func Soak() int {
	text := os.Getenv("SOAK")
	if text == "" {
		return 1
	}
	times, err := strconv.Atoi(text)
	if err != nil || times < 1 {
		panic("SOAK must be a positive integer, not " + text)
	}
	return times
}

// Again reports whether a test records once more that has recorded since then: with SOAK=n in the
// environment, for n minutes.
func Again(since time.Time) bool {
	return os.Getenv("SOAK") != "" && time.Since(since) < time.Duration(Soak())*time.Minute
}

// Some draws n faults, or whatever else a test tries in turn, and keeps their order. With SOAK in
// the environment, also with SOAK=1, it returns all of them.
func Some[F any](test string, n int, all []F) []F {
	if os.Getenv("SOAK") != "" {
		return all
	}
	own := fnv.New64a() // so that it does not matter which test draws first
	_, _ = own.Write([]byte(test))
	lot := rand.New(rand.NewPCG(seed(), own.Sum64()))
	chosen := lot.Perm(len(all))[:min(n, len(all))]
	slices.Sort(chosen)
	var some []F
	for _, i := range chosen {
		some = append(some, all[i])
	}
	return some
}

// seed is what the lots of a run are drawn with: LOT in the environment, or one that is printed, so
// that LOT can draw the same again.
var seed = sync.OnceValue(func() uint64 {
	text := os.Getenv("LOT")
	if text == "" {
		text = strconv.FormatUint(rand.Uint64(), 10)
		fmt.Printf("LOT=%s draws again what is drawn by lot\n", text)
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic("LOT must be a positive integer, not " + text)
	}
	return number
})

// Check is an error if a file does not have each of the texts to change once.
func Check(folder, file string, changes []string) error {
	content, err := os.ReadFile(filepath.Join(folder, file))
	if err == nil {
		_, err = change(string(content), changes)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func copyService(from, to string, changes Changes) error {
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
		text, err := change(string(content), changes[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
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

// aheadClock has the place of the standard library's clock.
const aheadClock = `package main

import "time"

func clockNow() time.Time { return time.Now().Add(%d) }
func clockSince(t time.Time) time.Duration { return clockNow().Sub(t) }
func clockUntil(t time.Time) time.Duration { return t.Sub(clockNow()) }
`

// setAhead has all of a copy ask another clock.
func setAhead(folder string, by time.Duration) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return err
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := strings.NewReplacer("time.Now", "clockNow", "time.Since", "clockSince",
			"time.Until", "clockUntil").Replace(string(content))
		if text == string(content) {
			continue
		}
		text += "\nvar _ time.Time // even if the clock was all that was imported\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	clock := fmt.Appendf(nil, aheadClock, by)
	return os.WriteFile(filepath.Join(folder, "clock.go"), clock, 0o600)
}
