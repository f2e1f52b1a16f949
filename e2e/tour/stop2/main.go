// Stop2 shows what stop 2 of docs/tour.md warns of: keys that are stored as they are, and compared byte by byte.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite"
)

const (
	key    = "3bq7Zt0uWn5xKc9RfLd2Vh8sMp6Ya1Ge" // the secret part of somebody's key
	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// equal compares as a loop does that anybody would write. steps is how many bytes it has looked at.
func equal(a, b string) (same bool, steps int) {
	if len(a) != len(b) {
		return false, 0
	}
	for i := range len(a) {
		if a[i] != b[i] {
			return false, i + 1
		}
	}
	return true, len(a)
}

// guess finds the key. All it learns of a guess is for how long the comparison ran, counted in steps.
func guess() (found string, guesses int) {
	known := ""
	for before := -1; len(known) > before && len(known) < len(key); {
		before = len(known)
		for _, next := range base62 {
			candidate := known + string(next)
			padded := candidate + strings.Repeat("_", len(key)-len(candidate))
			guesses++
			if same, steps := equal(padded, key); same || steps > len(candidate) {
				known = candidate
				break
			}
		}
	}
	return known, guesses
}

// median is the time of 1,000 comparisons of the key with a guess.
func median(guess string) time.Duration {
	const rounds, each = 201, 1000
	var times []time.Duration
	for range rounds {
		start := time.Now()
		equals := 0
		for range each {
			if same, _ := equal(guess, key); same {
				equals++
			}
		}
		times = append(times, time.Since(start))
		if equals > 0 {
			panic("the guess is the key")
		}
	}
	slices.Sort(times)
	return times[rounds/2]
}

// inFile reports whether a database that stores the value holds the key for everybody to read.
func inFile(value any) (bool, error) {
	dir, err := os.MkdirTemp("", "stop2-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "keys.db")
	db, err := sql.Open("sqlite", file)
	if err != nil {
		return false, err
	}
	_, err = db.ExecContext(context.Background(), "CREATE TABLE api_keys (key); INSERT INTO api_keys VALUES (?)", value)
	if err := db.Close(); err != nil {
		return false, err
	}
	if err != nil {
		return false, err
	}
	content, err := os.ReadFile(file) //nolint:gosec // made above
	return bytes.Contains(content, []byte(key)), err
}

func show(out io.Writer) error {
	digest := sha256.Sum256([]byte(key))
	for _, stored := range []struct {
		what  string
		value any
	}{{"the key", key}, {"its SHA-256", digest[:]}} {
		found, err := inFile(stored.value)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "a database that stores %s: a stolen copy shows the key: %t\n", stored.what, found)
	}
	_, _ = fmt.Fprintf(out, "1,000 comparisons, the first character wrong: %d ns; the last one wrong: %d ns\n",
		median("_"+key[1:]).Nanoseconds(), median(key[:len(key)-1]+"_").Nanoseconds())
	found, guesses := guess()
	_, _ = fmt.Fprintf(out, "the key was found: %t, after %d guesses of 2e57 possible keys\n", found == key, guesses)
	return nil
}

func main() {
	if err := show(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
