//go:build linux

package main

// Databases: filled once for all runs; every service gets a copy.

import (
	"bufio"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"
)

// database is one that no service has opened.
type database struct {
	path, key string
	pets      int
}

// The pets: names of 4.1 letters on average, half available, a fifth pending, the rest sold. Ids
// have no gaps.
const fillPets = `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?),
	names (k, name) AS MATERIALIZED (SELECT key, value FROM json_each('["Rex", "Bella", "Milo",
		"Luna", "Tom", "Lucy", "Max", "Daisy", "Oscar", "Molly", "Simba", "Nala", "Coco", "Rocky",
		"Lola", "Kim"]'))
INSERT INTO pets (category_id, status, name)
SELECT i % 100 + 1,
	CASE WHEN i * 7 % 10 < 5 THEN 2 WHEN i * 7 % 10 < 7 THEN 3 ELSE 4 END,
	(SELECT name FROM names WHERE k = i % 16)
FROM n`

// database has so many pets and, beside the key it is used with, so many keys.
func (b *bench) database(pets, keys int) *database {
	name := fmt.Sprintf("pets-%d-keys-%d.db", pets, keys)
	if d := b.databases[name]; d != nil {
		return d
	}
	say("filling %s", name)
	d := &database{path: filepath.Join(b.work, name), pets: pets}
	d.key = command(b.petstore, "key", "create", "-db", d.path, "-plan", "enterprise",
		"-per-minute", "1000000000", "-per-day", "1000000000000")
	db := open(d.path)
	run(db, "PRAGMA synchronous = OFF")
	run(db, fillPets, pets)
	addKeys(db, keys)
	run(db, "PRAGMA wal_checkpoint(TRUNCATE)")
	must(db.Close())
	b.databases[name] = d
	return d
}

// addKeys adds keys that are like the one that the service has made, whatever columns it has.
func addKeys(db *sql.DB, keys int) {
	var columns string
	must(db.QueryRow(`SELECT group_concat(name) FROM pragma_table_info('api_keys')
		WHERE name NOT IN ('id', 'digest', 'last_four')`).Scan(&columns))
	const insert = `INSERT INTO api_keys (digest, last_four, %[1]s)
		SELECT ?, ?, %[1]s FROM api_keys WHERE id = 1`
	tx := must1(db.Begin())
	add := must1(tx.Prepare(fmt.Sprintf(insert, columns)))
	for i := range keys {
		key := makeKey("known", i)
		digest := sha256.Sum256([]byte(key))
		must1(add.Exec(digest[:], key[len(key)-4:]))
	}
	must(tx.Commit())
}

// open opens a database without making the service's choices for it.
func open(path string) *sql.DB {
	db := must1(sql.Open("sqlite", path))
	db.SetMaxOpenConns(1) // so that pragmas hold
	return db
}

func run(db *sql.DB, statement string, args ...any) { must1(db.Exec(statement, args...)) }

// makeKey is a well-formed key (auth.go says of what), always the same for a number.
func makeKey(kind string, number int) string {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	key := "pet_live_"
	for _, b := range sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, number)) {
		key += string(base62[b%62])
	}
	digits := make([]byte, 6)
	sum := crc32.ChecksumIEEE([]byte(key))
	for i := 5; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return key + string(digits)
}

// keyFile holds so many keys, one a line.
func (b *bench) keyFile(keys int) string {
	file := must1(os.Create(fmt.Sprintf("%s/keys-%d.txt", b.work, keys)))
	defer file.Close()
	w := bufio.NewWriter(file)
	for i := range keys {
		_, _ = fmt.Fprintln(w, makeKey("known", i)) // Flush reports the error
	}
	must(w.Flush())
	return file.Name()
}

// copy makes a copy that is synced, so that nothing is written back during a measurement.
func (b *bench) copy(path string) string {
	from := must1(os.Open(path))
	defer from.Close()
	to := must1(os.CreateTemp(b.work, "copy-*.db"))
	defer to.Close()
	must1(io.Copy(to, from))
	must(to.Sync())
	return to.Name()
}

// remove deletes a copy with its log.
func remove(path string) {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(path + suffix)
	}
}
