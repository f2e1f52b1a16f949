// Stop6 shows what stop 6 of docs/tour.md warns of: pages by OFFSET, and a write that is repeated blindly when
// the answer of a database far away is lost.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	_ "modernc.org/sqlite"
)

// The two ways to ask for the page behind the first 100,000 pets.
const (
	depth  = 100_000
	offset = "SELECT id, name FROM pets ORDER BY id LIMIT 20 OFFSET ?"
	keyset = "SELECT id, name FROM pets WHERE id > ? ORDER BY id LIMIT 20"
)

// open makes a database with pets 1 to n.
func open(dir string, n int) (*sql.DB, error) {
	db, err := sql.Open("sqlite", filepath.Join(dir, fmt.Sprint(n, ".db")))
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(context.Background(), `CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT);
		WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < ?)
		INSERT INTO pets SELECT id, 'pet ' || id FROM ids`, n)
	return db, err
}

// read returns the ids on the page behind at.
func read(db *sql.DB, query string, at int64) (ids []int64, err error) {
	rows, err := db.QueryContext(context.Background(), query, at)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// median is how long a page takes.
func median(db *sql.DB, query string) (time.Duration, error) {
	var times []time.Duration
	for range 51 {
		start := time.Now()
		if _, err := read(db, query, depth); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// follow reads two pages of 20, as a client does that mirrors the store. In between, somebody deletes pet 7.
func follow(dir, query string, next func(ids []int64) int64) (ids []int64, err error) {
	db, err := open(dir, 100)
	if err != nil {
		return nil, err
	}
	defer os.Remove(filepath.Join(dir, "100.db"))
	defer db.Close()
	first, err := read(db, query, 0)
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(context.Background(), "DELETE FROM pets WHERE id = 7"); err != nil {
		return nil, err
	}
	second, err := read(db, query, next(first))
	return append(first, second...), err
}

// far is a database on another machine. It stores the first pet, and then the connection breaks.
type far struct {
	pets   []string
	broken bool
}

var errReset = errors.New("connection reset by peer")

func (f *far) write(pet string) error {
	f.pets = append(f.pets, pet)
	if !f.broken {
		f.broken = true
		return errReset
	}
	return nil
}

// naive repeats a write until it succeeds.
func naive(f *far, pet string) {
	for f.write(pet) != nil { //nolint:revive // it waits for nothing
	}
}

func show(out io.Writer) error {
	dir, err := os.MkdirTemp("", "stop6-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := open(dir, 2*depth)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, way := range []struct {
		name, query string
		next        func(ids []int64) int64
	}{
		{"OFFSET", offset, func(ids []int64) int64 { return int64(len(ids)) }},
		{"keyset", keyset, func(ids []int64) int64 { return ids[len(ids)-1] }},
	} {
		took, err := median(db, way.query)
		if err != nil {
			return err
		}
		ids, err := follow(dir, way.query, way.next)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "%s: the page behind %d pets takes %d µs; pet 21 is on a page: %t\n", way.name, depth,
			took.Microseconds(), slices.Contains(ids, 21))
	}
	f := &far{}
	naive(f, "Rex")
	_, _ = fmt.Fprintf(out, "one create, repeated because its answer was lost: %d pets %q\n", len(f.pets), f.pets)
	return nil
}

func main() {
	if err := show(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
