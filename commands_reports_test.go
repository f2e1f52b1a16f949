package main

// Tests of the commands that show keys and their usage. Where time counts, it is fake, and begins
// at midnight on 1 January 2000, UTC.

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// prints checks what a key command prints. The last four characters of keys are stars in it, and
// JSON is compact.
func (k testKeys) prints(line, want string) {
	k.Helper()
	args := strings.Fields(line)
	got := k.do(args[0], args[1:]...)
	if strings.Contains(line, "-json") {
		var compact bytes.Buffer
		must(k, json.Compact(&compact, []byte(got)))
		got = compact.String()
	}
	lastFour := regexp.MustCompile(`("lastFour":"|live |test )\w{4}`)
	if got := lastFour.ReplaceAllString(got, "${1}****"); got != want {
		k.Errorf("key %s prints\n%s\nwant\n%s", line, got, want)
	}
}

// deprecatedUse is the statement that notes when a key last used the deprecated operation.
func deprecatedUse(id int64, when instant) statement {
	return sqlOf("UPDATE api_keys SET deprecated_use_at = ? WHERE id = ?", int64(when), id)
}

// shownKeys has a banned key, a revoked one, whose windows and ban are over, the successor of the
// first, which shares its ban and usage, and one that was never used.
func shownKeys(t *testing.T) testKeys {
	k := newKeys(t)
	k.mint("create", "-name", "shop front", "-plan", "pro")
	k.mint("create", "-expires", "48h", "-test")
	k.mint("rotate", "1")
	k.do("set", "-expires", "0", "1")
	k.mint("create", "-expires", "1s")
	now := instantOf(time.Now())
	k.write(
		saveUsage(1, &usage{
			minute:   bucket{used: 7, ends: now + 1000},
			day:      bucket{used: 70, ends: now + 2000},
			bannedAt: now, bannedUntil: now + 600_500,
		}),
		saveUsage(2, &usage{
			minute:   bucket{used: 8, ends: now},
			day:      bucket{used: 80, ends: now},
			bannedAt: now - 9, bannedUntil: now,
		}),
		deprecatedUse(1, now-1),
	)
	k.do("revoke", "2")
	return k
}

func TestKeysAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := shownKeys(t)
		const first = `{"id":1,"name":"shop front","plan":"pro","lastFour":"****",` +
			`"createdAt":"2000-01-01T00:00:00Z","expiresAt":null,"revokedAt":null,` +
			`"perMinute":300,"perDay":10000,"usedThisMinute":7,"usedToday":70,` +
			`"bannedUntil":"2000-01-01T00:10:00.5Z","deprecatedUseAt":"1999-12-31T23:59:59.999Z",` +
			`"lastUsedAt":"1999-12-31T23:59:01Z","test":false,"state":"banned",` +
			`"succeeds":null,"succeededBy":3}`
		const second = `{"id":2,"name":"","plan":"free","lastFour":"****",` +
			`"createdAt":"2000-01-01T00:00:00Z","expiresAt":"2000-01-03T00:00:00Z",` +
			`"revokedAt":"2000-01-01T00:00:00Z",` +
			`"perMinute":60,"perDay":1000,"usedThisMinute":0,"usedToday":0,` +
			`"bannedUntil":null,"deprecatedUseAt":null,` +
			`"lastUsedAt":"1999-12-31T23:59:00Z","test":true,"state":"revoked",` +
			`"succeeds":null,"succeededBy":null}`
		const third = `{"id":3,"name":"shop front","plan":"pro","lastFour":"****",` +
			`"createdAt":"2000-01-01T00:00:00Z","expiresAt":null,"revokedAt":null,` +
			`"perMinute":300,"perDay":10000,"usedThisMinute":7,"usedToday":70,` +
			`"bannedUntil":"2000-01-01T00:10:00.5Z","deprecatedUseAt":null,` +
			`"lastUsedAt":"1999-12-31T23:59:01Z","test":false,"state":"banned",` +
			`"succeeds":1,"succeededBy":null}`
		const fourth = `{"id":4,"name":"","plan":"free","lastFour":"****",` +
			`"createdAt":"2000-01-01T00:00:00Z","expiresAt":"2000-01-01T00:00:01Z",` +
			`"revokedAt":null,` +
			`"perMinute":60,"perDay":1000,"usedThisMinute":0,"usedToday":0,` +
			`"bannedUntil":null,"deprecatedUseAt":null,` +
			`"lastUsedAt":null,"test":false,"state":"active",` +
			`"succeeds":null,"succeededBy":null}`
		k.prints("show -json 1", first)
		k.prints("list -json", "["+first+","+second+","+third+","+fourth+"]")
		time.Sleep(time.Second)
		k.prints("show -json 4", strings.Replace(fourth, "active", "expired", 1))
	})
}

func TestKeysAsATable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		for _, args := range []string{
			"-name active", "-name revoked", "-name expired -expires 1h", "-name banned -plan pro",
			"-name ending -expires 48h", "-name busy -test -expires 361h",
		} {
			k.mint("create", strings.Fields(args)...)
		}
		k.do("revoke", "2")
		time.Sleep(time.Hour)
		now := instantOf(time.Now())
		used := func(minute, day int64) *usage {
			return &usage{
				minute: bucket{used: minute, ends: now + 1},
				day:    bucket{used: day, ends: now + 1},
			}
		}
		k.write(
			saveUsage(1, used(5, 799)),
			saveUsage(6, used(70, 800)),
			saveUsage(4, &usage{bannedAt: now, bannedUntil: now + 600_000}),
			deprecatedUse(1, now),
		)
		k.prints("list", strings.TrimPrefix(`
ID  KEY        PLAN  MINUTE  DAY       STATE                               NAME
1   live ****  free  5/60    799/1000  active; deprecated call 2000-01-01  active
2   live ****  free  0/60    0/1000    revoked                             revoked
3   live ****  free  0/60    0/1000    expired                             expired
4   live ****  pro   0/300   0/10000   banned to 2000-01-01 01:10:00Z      banned
5   live ****  free  0/60    0/1000    active; ends 2000-01-03 00:00:00Z   ending
6   test ****  free  70/60   800/1000  active; ends 2000-01-16 01:00:00Z   busy
`, "\n"))
		k.prints("show 6", strings.TrimPrefix(`
ID  KEY        PLAN  MINUTE  DAY       STATE                              NAME
6   test ****  free  70/60   800/1000  active; ends 2000-01-16 01:00:00Z  busy
`, "\n"))
	})
}

func TestKeyShowTellsWhatCameBeforeAndAfter(t *testing.T) {
	k := newKeys(t)
	k.mint("create", "-name", "shop")
	k.mint("create", "-name", "other")
	k.mint("rotate", "1") // 3
	k.mint("rotate", "3") // 4
	k.mint("rotate", "1") // 5
	for id, want := range map[string]string{
		"1": `"succeeds": null, "succeededBy": 5`,
		"2": `"succeeds": null, "succeededBy": null`,
		"3": `"succeeds": 1, "succeededBy": 4`,
		"4": `"succeeds": 3, "succeededBy": null`,
	} {
		shown := strings.Join(strings.Fields(k.do("show", "-json", id)), " ")
		if !strings.Contains(shown, want) {
			t.Errorf("of key %s it shows %s, want %s", id, shown, want)
		}
	}
}

func TestAReportThatCannotBeShownIsAnError(t *testing.T) {
	db := madeDatabase(t)
	for _, line := range []string{
		"show 1", "show -json 1", "list", "list -json", "usage", "usage 1",
	} {
		args := append(strings.Fields("key "+line), "-db", db)
		err := run(t.Context(), args, nil, nil, fullDisk{}, io.Discard)
		wantOneLine(t, err, false, "no space left on device")
	}
}

func TestReportsOfADatabaseWithoutKeysAreEmpty(t *testing.T) {
	k := newKeys(t)
	openDatabase(t, k.db)
	k.prints("list", "ID  KEY  PLAN  MINUTE  DAY  STATE  NAME\n")
	k.prints("list -json", "[]")
	k.prints("usage", "ID   ADMITTED    REFUSED    ERRORS  PLAN  NAME\n")
	k.prints("usage -json", "[]")
}

// usedDay is the statement that stores a day of a usage, so many days before 1 January 2000.
func usedDay(usageID, ago, admitted, refused, errors int64) statement {
	const today = 10_957
	return sqlOf(`INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
		VALUES (?, ?, ?, ?, ?)`, usageID, today-ago, admitted, refused, errors)
}

// usedKeys has four lines of keys: a quiet one, one that was rotated, one that is refused, and one
// without use. A key of an earlier version may have a name that turns round what follows it.
func usedKeys(t *testing.T) testKeys {
	k := newKeys(t)
	k.mint("create", "-name", "quiet")
	k.mint("create", "-name", "before", "-plan", "pro")
	k.mint("create", "-name", "refused", "-plan", "business")
	k.mint("create", "-name", "unused")
	k.mint("rotate", "2") // 5
	k.mint("rotate", "5") // 6
	k.do("set", "-name", "busy", "6")
	k.do("revoke", "1")
	k.write(
		sqlOf("UPDATE api_keys SET name = ? WHERE id = 3", "\u202erefused"),
		usedDay(1, 0, 5, 0, 0),
		usedDay(2, 0, 50, 3, 0),
		usedDay(2, 2, 1000, 0, 7),
		usedDay(2, 29, 1, 0, 0),
		usedDay(2, 30, 9000, 0, 0),
		usedDay(2, 399, 90_000, 1, 2),
		usedDay(3, 1, 6, 2100, 0),
	)
	return k
}

func TestKeyUsageAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := usedKeys(t)
		const busy = `{"id":6,"name":"busy","plan":"pro","days":[` +
			`{"day":"1999-12-03","admitted":1,"refused":0,"errors":0},` +
			`{"day":"1999-12-30","admitted":1000,"refused":0,"errors":7},` +
			`{"day":"2000-01-01","admitted":50,"refused":3,"errors":0}]}`
		const refused = `{"id":3,"name":"` + "\u202e" + `refused","plan":"business","days":[` +
			`{"day":"1999-12-31","admitted":6,"refused":2100,"errors":0}]}`
		const quiet = `{"id":1,"name":"quiet","plan":"free","days":[` +
			`{"day":"2000-01-01","admitted":5,"refused":0,"errors":0}]}`
		const unused = `{"id":4,"name":"unused","plan":"free","days":[]}`
		k.prints("usage -json", "["+busy+","+refused+","+quiet+","+unused+"]")
		for _, id := range []string{"2", "5", "6"} { // one line of rotations
			k.prints("usage -json "+id, "["+busy+"]")
		}
		k.prints("usage -json 4", "["+unused+"]")
		k.prints("usage -json -days 2 3", "["+refused+"]")
		k.prints("usage -json -days 01 1", "["+quiet+"]")
	})
}

func TestKeyUsageAsATable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := usedKeys(t)
		k.prints("usage", strings.TrimPrefix(`
ID   ADMITTED    REFUSED    ERRORS  PLAN      NAME
6        1051          3         7  pro       busy
3           6       2100         0  business  `+"\u202e"+`refused
1           5          0         0  free      quiet
4           0          0         0  free      unused
`, "\n"))
		k.prints("usage -days 4 2", strings.TrimPrefix(`
DAY          ADMITTED    REFUSED    ERRORS
1999-12-30       1000          0         7
2000-01-01         50          3         0
`, "\n"))
		k.prints("usage 4", "DAY   ADMITTED    REFUSED    ERRORS\n")
		if table := k.do("usage", "-days", "400"); !strings.Contains(table, "\n6      100051 ") {
			t.Errorf("400 days are\n%s", table)
		}
	})
}

// heldRows counts what a report has read and not written yet.
type heldRows struct {
	lines      int
	read, most int // rows since the last write, and the most of them
	longest    int // write, in bytes
}

func (h *heldRows) Write(text []byte) (int, error) {
	h.read = 0
	h.longest = max(h.longest, len(text))
	h.lines += bytes.Count(text, []byte("\n"))
	return len(text), nil
}

func (h *heldRows) note(_ statement, columns []any) {
	if columns != nil {
		h.read++
		h.most = max(h.most, h.read)
	}
}

// What a report holds in memory does not grow with the database.
func TestReportsAreWrittenAsTheyAreRead(t *testing.T) {
	engines(t, testReportsAreWrittenAsTheyAreRead)
}

func testReportsAreWrittenAsTheyAreRead(t *testing.T, db string) {
	const keys, days = 11_000, 2
	s := openDatabase(t, db)
	_, err := s.write(t.Context(),
		sqlOf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
				created_at, lifetime, expires_at, unbanned_at)
			SELECT unhex(format('%064d', i)), 'abcd', 0, 'shop', 'free', 0, 0, 1, 0, 0, 0
			FROM n`, int64(keys)),
		sqlOf(`WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ? - 1)
			INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
			SELECT id, i, id, 1, 1 FROM api_keys, n`, int64(days)))
	must(t, err)
	for _, c := range []struct {
		line        string
		run         func(context.Context, *invocation) error
		lines, most int
	}{
		{"key list", keyList, keys + 1, 10_000},
		{"key list -json", keyList, 20*keys + 2, 1},
		{"key usage", keyUsage, keys + 1, (1 + days) * 10_000},
		{"key usage -json", keyUsage, (7+6*days)*keys + 2, 1 + days},
	} {
		held := &heldRows{}
		cmd := &invocation{
			process: &process{stdout: held},
			now:     instant(days-1) * dayMillis,
			store:   storeOn(&watchedEngine{engine: s.engine, check: held.note}),
		}
		cmd.json = strings.HasSuffix(c.line, "-json")
		cmd.days = days
		must(t, c.run(t.Context(), cmd))
		if held.lines != c.lines || held.most > c.most || held.longest > 1000 {
			t.Errorf("%s holds %+v, want %d lines, %d rows at most", c.line, held, c.lines, c.most)
		}
	}
}

// Among a million keys, a command that read all of them would take seconds. key usage only reads
// the rows of the keys themselves, and the days of one.
func TestCommandsOnOneKeyReadNoOthers(t *testing.T) {
	k := newKeys(t)
	k.mint("create")
	s := openDatabase(t, k.db)
	// SQLite calls it SEARCH, without USING, when it looks at all rows for a max().
	all := regexp.MustCompile(
		`(?m)^SCAN (k|api_keys|usage_days)\b|^SEARCH (k|api_keys|usage_days)$`)
	for _, line := range []string{"key show", "key rotate",
		"key set -plan pro -name x -expires 1h", "key revoke", "key unban"} {
		now := instantOf(time.Now())
		k.write(saveUsage(1, &usage{bannedAt: now, bannedUntil: now + dayMillis}),
			sqlOf("UPDATE api_keys SET revoked_at = 0, expires_at = 0, unbanned_at = 0"))
		args := append(strings.Fields(line), "1")
		entry := commandNamed(args[0] + " " + args[1])
		cmd, err := parseCommand(entry.name, args[2:])
		must(t, err)
		cmd.stdout = io.Discard
		cmd.log = slog.New(slog.DiscardHandler)
		var sent []statement
		cmd.store = storeOn(&watchedEngine{engine: s.engine, check: func(st statement, _ []any) {
			sent = append(sent, st)
		}})
		must(t, cmd.readID(t.Context()))
		must(t, entry.run(t.Context(), cmd))
		if len(sent) == 0 {
			t.Errorf("%s sends no statement", line)
		}
		for _, st := range sent {
			if plan := planOf(t, k.db, st); all.MatchString(plan) {
				t.Errorf("%s reads all rows:\n%s\n%s", line, st.query, plan)
			}
		}
	}
}

// planOf is how SQLite answers a query, a line for each step.
func planOf(t *testing.T, db string, st statement) (plan string) {
	t.Helper()
	rows, err := otherProgram(t, db).Query("EXPLAIN QUERY PLAN "+st.query, st.args...)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		must(t, rows.Scan(&id, &parent, &unused, &detail))
		plan += detail + "\n"
	}
	return plan
}
