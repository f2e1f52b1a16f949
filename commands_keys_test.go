package main

// Tests of the commands that make, change and show keys, and of the reports of their usage. Where
// time counts, it is fake, and begins at midnight on 1 January 2000, UTC.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// shownKey is what show -json prints of a key.
type shownKey struct {
	ID              int64   `json:"id"`
	Name            string  `json:"name"`
	Plan            string  `json:"plan"`
	LastFour        string  `json:"lastFour"`
	CreatedAt       string  `json:"createdAt"`
	ExpiresAt       *string `json:"expiresAt"`
	RevokedAt       *string `json:"revokedAt"`
	PerMinute       int64   `json:"perMinute"`
	PerDay          int64   `json:"perDay"`
	UsedThisMinute  int64   `json:"usedThisMinute"`
	UsedToday       int64   `json:"usedToday"`
	BannedUntil     *string `json:"bannedUntil"`
	DeprecatedUseAt *string `json:"deprecatedUseAt"`
	LastUsedAt      *string `json:"lastUsedAt"`
	Test            bool    `json:"test"`
	State           string  `json:"state"`
	Succeeds        any     `json:"succeeds"`    // a number or nil
	SucceededBy     any     `json:"succeededBy"` // a number or nil
}

func textOrNull(text *string) string {
	if text == nil {
		return "null"
	}
	return *text
}

// summary is what key set can change of a key.
func (k testKeys) summary(id string) string {
	k.Helper()
	key := k.show(id)
	return fmt.Sprintf("%s, %s, %d a minute, %d a day, ends %s",
		key.Name, key.Plan, key.PerMinute, key.PerDay, textOrNull(key.ExpiresAt))
}

// logs runs a key command, which must succeed, and returns what it says on stderr.
func (k testKeys) logs(line string) string {
	k.Helper()
	args := strings.Fields("key " + line)
	_, log, err := petstore(k, map[string]string{"PETSTORE_DB": k.db}, args...)
	must(k, err)
	return log
}

// refuses runs a key command that must fail with the words, and change nothing.
func (k testKeys) refuses(line string, isUsage bool, words ...string) {
	k.Helper()
	before := k.do("list", "-json")
	args := strings.Fields("key " + line)
	out, log, err := petstore(k, map[string]string{"PETSTORE_DB": k.db}, args...)
	wantOneLine(k, err, isUsage, words...)
	if out+log != "" {
		k.Errorf("key %s prints %q and logs %q", line, out, log)
	}
	if after := k.do("list", "-json"); after != before {
		k.Errorf("key %s is refused, but the keys were\n%s and are\n%s", line, before, after)
	}
}

func TestKeyCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = "999999999999999"
		k := newKeys(t)
		for i, c := range []struct{ args, form, want string }{
			{"", "pet_live_", ", free, 60 a minute, 1000 a day, ends null"},
			{"-plan pro -name shop", "pet_live_",
				"shop, pro, 300 a minute, 10000 a day, ends null"},
			{"-plan business -test", "pet_test_",
				", business, 1000 a minute, 100000 a day, ends null"},
			{"-plan enterprise -per-minute 1 -per-day 2", "pet_live_",
				", enterprise, 1 a minute, 2 a day, ends null"},
			{"-plan enterprise -per-minute 0100 -per-day 08", "pet_live_", // decimal
				", enterprise, 100 a minute, 8 a day, ends null"},
			{"-plan enterprise -per-minute " + most + " -per-day " + most, "pet_live_",
				", enterprise, " + most + " a minute, " + most + " a day, ends null"},
			{"-expires 1s", "pet_live_",
				", free, 60 a minute, 1000 a day, ends 2000-01-01T00:00:01Z"},
		} {
			id := fmt.Sprint(i + 1)
			token := k.mint("create", strings.Fields(c.args)...)
			if !strings.HasPrefix(token, c.form) || !strings.HasSuffix(token, k.show(id).LastFour) {
				t.Errorf("create %s prints %.9s…, want %s, and the last four are %s",
					c.args, token, c.form, k.show(id).LastFour)
			}
			if got := k.summary(id); got != c.want {
				t.Errorf("create %s makes %q, want %q", c.args, got, c.want)
			}
		}
	})
}

// In the wrong folder, key create makes a key that opens nothing.
func TestKeyCreateSaysInWhichDatabase(t *testing.T) {
	t.Chdir(t.TempDir())
	folder, err := os.Getwd()
	must(t, err)
	must(t, os.Symlink("away.db", "link.db"))
	for db, path := range map[string]string{
		"petstore.db":                     "petstore.db", // the default
		"other.db":                        "other.db",
		filepath.Join(folder, "third.db"): "third.db",
		"link.db":                         "link.db",
	} {
		args := []string{"key", "create", "-name", "shop front"}
		if db != "petstore.db" {
			args = append(args, "-db", db)
		}
		out, log, err := petstore(t, nil, args...)
		must(t, err)
		want := `"msg":"key created","id":1,"name":"shop front","plan":"free",` +
			`"perMinute":60,"perDay":1000,"expires":"never","test":false,` +
			`"database":"` + filepath.Join(folder, path) + `"}`
		if !strings.Contains(log, want) || strings.Contains(log, strings.TrimSpace(out)) {
			t.Errorf("for -db %s stderr says %s", db, log)
		}
	}
}

// Nobody would ever know a key that was not shown.
func TestAKeyThatCannotBeShownIsNotStored(t *testing.T) {
	k, unseen := newKeys(t), newKeys(t)
	k.mint("create")
	k.mint("create", "-expires", "48h")
	before := k.do("list", "-json")
	for _, line := range []string{"create -db " + k.db, "rotate -db " + k.db + " 1",
		"rotate -db " + k.db + " 2", "rotate -db " + k.db + " -overlap 90d 2",
		"create -db " + unseen.db} {
		var log bytes.Buffer
		args := strings.Fields("key " + line)
		err := run(t.Context(), args, nil, nil, fullDisk{}, &log)
		wantOneLine(t, err, false, "no space left on device", "no key was made")
		if log.Len() > 0 {
			t.Errorf("key %s: beside the error stderr says %s", line, &log)
		}
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("the keys are %s\nand were %s", after, before)
	}
	if _, err := os.Stat(unseen.db); err == nil && unseen.do("list", "-json") != "[]\n" {
		t.Error("the new database has a key")
	}
}

// TestAKeyThatCannotBeStoredIsNotShown: another program holds the lock for too long, or the
// operator stops the command meanwhile.
func TestAKeyThatCannotBeStoredIsNotShown(t *testing.T) {
	k := newKeys(t)
	k.mint("create")
	before := k.do("list", "-json")
	for _, c := range []struct {
		line    string
		stopped time.Duration // after which the command is stopped
		takes   time.Duration
		reason  string
	}{
		{"create", time.Hour, commandWait, "database is locked"},
		{"rotate 1", time.Hour, commandWait, "database is locked"},
		{"create", time.Second, time.Second, "stopped by a signal"},
		{"rotate 1", time.Second, time.Second, "stopped by a signal"},
	} {
		synctest.Test(t, func(t *testing.T) {
			otherProgram(t, k.db, "BEGIN IMMEDIATE")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(c.stopped, cancel)
			var out bytes.Buffer
			args := append(strings.Fields("key "+c.line), "-db", k.db)
			start := time.Now()
			err := run(ctx, args, nil, nil, &out, io.Discard)
			wantOneLine(t, err, false, c.reason)
			if took := time.Since(start); took != c.takes {
				t.Errorf("key %s ends after %v, want %v", c.line, took, c.takes)
			}
			if out.Len() > 0 {
				t.Errorf("key %s prints %q", c.line, &out)
			}
		})
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("the keys are %s\nand were %s", after, before)
	}
}

// TestAStopTakesAKeyBackThatNobodyTakes. What another program has changed since stays changed, and
// a key that cannot be taken back is named.
func TestAStopTakesAKeyBackThatNobodyTakes(t *testing.T) {
	nothing := func(testKeys) {}
	setExpiry := func(k testKeys) { k.do("set", "-expires", "72h", "1") }
	lock := func(k testKeys) { otherProgram(k, k.db, "BEGIN IMMEDIATE") }
	const undone = "no key was made, since it cannot be shown"
	const left = "key 2 is stored and cannot be shown; petstore key revoke 2 ends it"
	for what, c := range map[string]struct {
		line      string
		meanwhile func(testKeys) // while the key is stored
		takes     time.Duration
		says      string
		keys      int
		ends      int // the day in January on which key 1 ends
	}{
		"create":                  {"create", nothing, 0, undone, 1, 3},
		"create beside a lock":    {"create", lock, takeBackWait, left, 2, 3},
		"rotate":                  {"rotate 1", nothing, 0, undone, 1, 3},
		"rotate beside a lock":    {"rotate 1", lock, takeBackWait, left, 2, 2},
		"rotate beside a key set": {"rotate 1", setExpiry, 0, undone, 1, 4},
		"rotate to a later end":   {"rotate -overlap 9d 1", nothing, 0, undone, 1, 3},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeys(t)
				k.mint("create", "-expires", "48h")
				ctx, stop := context.WithCancel(t.Context())
				reader, stdout := io.Pipe()
				defer reader.Close()
				ended := make(chan error, 1)
				args := append(strings.Fields("key "+c.line), "-db", k.db)
				go func() { ended <- run(ctx, args, nil, nil, stdout, io.Discard) }()
				synctest.Wait()
				if id := k.show("2").ID; id != 2 {
					t.Errorf("while it is shown, the key is stored as %d", id)
				}
				c.meanwhile(k)
				began := time.Now()
				stop()
				wantOneLine(t, <-ended, false, "stopped by a signal: "+c.says, "context canceled")
				if took := time.Since(began); took != c.takes {
					t.Errorf("it takes %v, want %v", took, c.takes)
				}
				if keys := strings.Count(k.do("list"), "live"); keys != c.keys {
					t.Errorf("%d keys are stored, want %d", keys, c.keys)
				}
				want := fmt.Sprintf("2000-01-%02dT00:00:00Z", c.ends)
				if got := textOrNull(k.show("1").ExpiresAt); got != want {
					t.Errorf("the old key ends at %s, want %s", got, want)
				}
			})
		})
	}
}

// TestEveryChangeOfAKeyIsLoggedAndCounted as an edit, by which the services of a cluster notice it.
func TestEveryChangeOfAKeyIsLoggedAndCounted(t *testing.T) {
	k := newKeys(t)
	k.mint("create")
	s := openDatabase(t, k.db)
	now := instantOf(time.Now())
	k.write(saveUsage(1, &usage{bannedAt: now, bannedUntil: now + dayMillis}))
	for _, c := range []struct{ line, want string }{
		{"set -plan pro 1", `"msg":"key changed","id":1,"plan":"pro"}`},
		{"set -name till 1", `"msg":"key changed","id":1,"name":"till"}`},
		{"set -expires 0 -plan free 1",
			`"msg":"key changed","id":1,"expires":"never","plan":"free"}`},
		{"unban 1", `"msg":"key unbanned","id":1}`},
		{"unban 1", `"msg":"key is not banned","id":1}`},
		{"rotate 1", `"msg":"key rotated","id":1,"successor":2,"overlap":"24h0m0s"}`},
		{"revoke 1", `"msg":"key revoked","id":1}`},
		{"revoke 1", `"msg":"key was revoked already","id":1}`},
	} {
		edits := readNumber(t, s, editsQuery)
		log := k.logs(c.line)
		if !strings.HasSuffix(log, c.want+"\n") || strings.Count(log, "\n") != 1 {
			t.Errorf("key %s logs %s, want one line with %s", c.line, log, c.want)
		}
		isNews := !strings.Contains(c.want, "is not banned")
		if counted := readNumber(t, s, editsQuery) > edits; counted != isNews {
			t.Errorf("key %s is counted as an edit: %v, want %v", c.line, counted, isNews)
		}
	}
}

func TestKeySetChangesWhatItIsToldToAndLeavesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create", "-name", "shop", "-expires", "48h")
		k.mint("create", "-name", "other", "-expires", "48h")
		other := k.do("show", "-json", "2")
		time.Sleep(49 * time.Hour) // An expired key can be revived.
		const free, pro = ", free, 60 a minute, 1000 a day", ", pro, 300 a minute, 10000 a day"
		for _, c := range []struct{ flags, want string }{
			{"-name till", "till" + free + ", ends 2000-01-03T00:00:00Z"},
			{"-expires 3d", "till" + free + ", ends 2000-01-06T01:00:00Z"},
			{"-plan pro", "till" + pro + ", ends 2000-01-06T01:00:00Z"},
			{"-expires 0", "till" + pro + ", ends null"},
			{"-name shop -expires 10m", "shop" + pro + ", ends 2000-01-03T01:10:00Z"},
			{"-plan enterprise -per-minute 5 -per-day 6",
				"shop, enterprise, 5 a minute, 6 a day, ends 2000-01-03T01:10:00Z"},
			{"-per-minute 7", "shop, enterprise, 7 a minute, 6 a day, ends 2000-01-03T01:10:00Z"},
			{"-per-day 80", "shop, enterprise, 7 a minute, 80 a day, ends 2000-01-03T01:10:00Z"},
			{"-plan enterprise -per-minute 9 -name all -expires 0",
				"all, enterprise, 9 a minute, 80 a day, ends null"},
			{"-plan business", "all, business, 1000 a minute, 100000 a day, ends null"},
			{"-plan free -expires 1s", "all" + free + ", ends 2000-01-03T01:00:01Z"},
		} {
			if out := k.do("set", append(strings.Fields(c.flags), "1")...); out != "" {
				t.Errorf("set %s prints %q on stdout", c.flags, out)
			}
			if got := k.summary("1"); got != c.want {
				t.Errorf("after set %s the key is %q, want %q", c.flags, got, c.want)
			}
		}
		k.do("set", "-plan", "free", "2")
		other = strings.Replace(other, "active", "expired", 1)
		if got := k.do("show", "-json", "2"); got != other {
			t.Errorf("the other key is\n%s, want\n%s", got, other)
		}
		// A successor lives as long as its predecessor was last told to.
		log := k.logs("set -expires 2d 1")
		if !strings.Contains(log, `"id":1,"expires":"2000-01-05 01:00:00Z"}`) {
			t.Errorf("the log says %s", log)
		}
		k.mint("rotate", "1")
		if got := textOrNull(k.show("3").ExpiresAt); got != "2000-01-05T01:00:00Z" {
			t.Errorf("the successor ends at %s", got)
		}
	})
}

func TestKeySetRefusesLimitsThatDoNotFitThePlan(t *testing.T) {
	k := newKeys(t)
	k.mint("create", "-plan", "enterprise", "-per-minute", "5", "-per-day", "6")
	k.mint("create", "-plan", "pro")
	for _, c := range []struct{ line, reason string }{
		{"set -per-minute 9 2", "-per-minute and -per-day go with -plan enterprise only"},
		{"set -plan free -per-day 9 2", "-per-minute and -per-day go with -plan enterprise only"},
		{"set -plan free -per-day 9 1", "-per-minute and -per-day go with -plan enterprise only"},
		{"set -plan enterprise 2", "-plan enterprise needs -per-minute and -per-day"},
		{"set -plan enterprise -per-day 9 2", "-plan enterprise needs -per-minute and -per-day"},
	} {
		k.refuses(c.line, true, c.reason, "has the plan")
	}
}

// A key may be revoked after the command has read it.
func TestKeySetRefusesARevokedKey(t *testing.T) {
	k := newKeys(t)
	k.mint("create", "-name", "shop")
	k.mint("create", "-name", "till")
	k.do("revoke", "1")
	for _, flags := range []string{"-plan pro", "-name x", "-expires 1h"} {
		k.refuses("set "+flags+" 1", false, "key 1 is revoked")
	}
	s := openDatabase(t, k.db)
	results, err := s.edit(t.Context(), revokeKey(2, 1), setName(2, "late"))
	must(t, err)
	if got := k.show("2"); results[1].affected != 0 || got.Name != "till" {
		t.Errorf("a key that was revoked meanwhile is changed: %+v", got)
	}
}

func TestKeyRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		const limits = "-plan enterprise -per-minute 5 -per-day 50"
		k.mint("create", append(strings.Fields(limits), "-name", "shop")...)
		now := instantOf(time.Now())
		k.write(saveUsage(1, &usage{
			minute: bucket{used: 3, ends: now + minuteMillis},
			day:    bucket{used: 30, ends: now + dayMillis},
		}))
		time.Sleep(time.Second)
		next := k.mint("rotate", "1")
		k.prints("show -json 2", `{"id":2,"name":"shop","plan":"enterprise","lastFour":"****",`+
			`"createdAt":"2000-01-01T00:00:01Z","expiresAt":null,"revokedAt":null,`+
			`"perMinute":5,"perDay":50,"usedThisMinute":3,"usedToday":30,`+
			`"bannedUntil":null,"deprecatedUseAt":null,"lastUsedAt":"2000-01-01T00:00:00Z",`+
			`"test":false,"state":"active","succeeds":1,"succeededBy":null}`)
		if k.show("2").LastFour != next[43:] {
			t.Errorf("the successor is shown as %s, and not %s", k.show("2").LastFour, next[43:])
		}
		k.mint("rotate", "-overlap", "1h", "2")
		k.mint("rotate", "-overlap", "0s", "3")
		for id, want := range map[string]string{
			"1": "2000-01-02T00:00:01Z", // a day is the usual overlap
			"2": "2000-01-01T01:00:01Z",
			"3": "2000-01-01T00:00:01Z",
			"4": "null",
		} {
			if got := textOrNull(k.show(id).ExpiresAt); got != want {
				t.Errorf("key %s ends at %s, want %s", id, got, want)
			}
		}
		k.write(saveUsage(1, &usage{day: bucket{used: 31, ends: now + dayMillis}}))
		for _, id := range []string{"1", "2", "3", "4"} {
			if got := k.show(id).UsedToday; got != 31 {
				t.Errorf("key %s has used %d today; one line of rotations has one usage", id, got)
			}
		}
	})
}

// The output of the first rotation was lost, say.
func TestRotatingAgainInsideTheOverlapGivesTheSameKindOfSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create")
		k.mint("create", "-expires", "48h", "-test")
		for _, id := range []string{"1", "2", "1", "2", "5"} {
			form := "pet_live_"
			if id == "2" {
				form = "pet_test_"
			}
			if next := k.mint("rotate", "-overlap", "1h", id); !strings.HasPrefix(next, form) {
				t.Errorf("the successor of key %s is %.9s…, want %s", id, next, form)
			}
		}
		for id, want := range map[string]string{
			"1": "comes after <nil>, before 5, ends 2000-01-01T01:00:00Z",
			"2": "comes after <nil>, before 6, ends 2000-01-01T01:00:00Z",
			"3": "comes after 1, before <nil>, ends null",
			"4": "comes after 2, before <nil>, ends 2000-01-03T00:00:00Z",
			"5": "comes after 1, before 7, ends 2000-01-01T01:00:00Z",
			"6": "comes after 2, before <nil>, ends 2000-01-03T00:00:00Z",
			"7": "comes after 5, before <nil>, ends null",
		} {
			key := k.show(id)
			got := fmt.Sprintf("comes after %v, before %v, ends %s",
				key.Succeeds, key.SucceededBy, textOrNull(key.ExpiresAt))
			if got != want {
				t.Errorf("key %s %s, want %s", id, got, want)
			}
		}
	})
}

func TestAnOverlapNeverExtendsAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create", "-expires", "48h")
		time.Sleep(36 * time.Hour)
		k.mint("rotate", "-overlap", "240h", "1")
		if got := textOrNull(k.show("1").ExpiresAt); got != "2000-01-03T00:00:00Z" {
			t.Errorf("the old key ends at %s", got)
		}
		if got := textOrNull(k.show("2").ExpiresAt); got != "2000-01-04T12:00:00Z" {
			t.Errorf("the successor ends at %s, want as late as if it were new", got)
		}
	})
}

func TestAKeyThatHasEndedCannotBeRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create", "-expires", "1h")
		k.mint("create")
		k.do("revoke", "2")
		time.Sleep(time.Hour)
		k.refuses("rotate 1", false, "key 1 is revoked or expired")
		k.refuses("rotate 2", false, "key 2 is revoked or expired")
	})
}

func TestAChangeThatCannotBeStoredIsAnError(t *testing.T) {
	k := newKeys(t)
	k.mint("create")
	otherProgram(t, k.db, `CREATE TRIGGER full BEFORE UPDATE ON api_keys
		BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`)
	for _, line := range []string{"revoke 1", "set -name till 1"} {
		k.refuses(line, false, "the disk is full")
	}
}

func TestARevocationKeepsItsFirstTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create")
		for range 2 {
			k.do("revoke", "1")
			if got := textOrNull(k.show("1").RevokedAt); got != "2000-01-01T00:00:00Z" {
				t.Errorf("the key is revoked at %s", got)
			}
			time.Sleep(time.Hour)
		}
	})
}

func TestKeyUnbanLiftsTheBanOfAllKeysThatShareTheUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create")
		k.mint("rotate", "1")
		k.mint("create")
		banned := func() (until []string) {
			for _, id := range []string{"1", "2", "3"} {
				until = append(until, textOrNull(k.show(id).BannedUntil))
			}
			return until
		}
		ban := func(id int64) {
			now := instantOf(time.Now())
			k.write(saveUsage(id, &usage{bannedAt: now, bannedUntil: now + 600_000}))
		}
		const first = "2000-01-01T00:10:00Z"
		ban(1)
		ban(3)
		time.Sleep(time.Minute)
		if got := banned(); !slices.Equal(got, []string{first, first, first}) {
			t.Errorf("the keys are banned until %s", got)
		}
		k.do("unban", "1")
		if got := banned(); !slices.Equal(got, []string{"null", "null", first}) {
			t.Errorf("after the unban they are banned until %s", got)
		}
	})
}

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
2   live ****  free  0/60    0/1000    revoked 2000-01-01 00:00:00Z        revoked
3   live ****  free  0/60    0/1000    expired 2000-01-01 01:00:00Z        expired
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

// A key and its successors are one block, however long ago they were made.
func TestAKeyAndItsSuccessorsAreABlockOfTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create", "-name", "shop")
		k.mint("create", "-name", "till", "-expires", "10d")
		k.mint("rotate", "-overlap", "1h", "1")
		k.mint("rotate", "2")
		time.Sleep(2 * time.Hour)
		k.mint("rotate", "-overlap", "0", "3")
		k.do("set", "-name", "front", "-expires", "1d", "5")
		k.do("revoke", "4")
		k.prints("list", strings.TrimPrefix(`
ID   KEY        PLAN  MINUTE  DAY     STATE                              NAME
1    live ****  free  0/60    0/1000  expired 2000-01-01 01:00:00Z       shop
  3  live ****  free  0/60    0/1000  expired 2000-01-01 02:00:00Z       shop
  5  live ****  free  0/60    0/1000  active; ends 2000-01-02 02:00:00Z  front
2    live ****  free  0/60    0/1000  active; ends 2000-01-02 00:00:00Z  till
  4  live ****  free  0/60    0/1000  revoked 2000-01-01 02:00:00Z       till
`, "\n"))
		if ids := allMatches(`"id": (\d+)`, k.do("list", "-json")); strings.Join(ids, "") != "12345" {
			t.Errorf("in JSON the keys are %s", ids)
		}
	})
}

// TestEachKeyIsInTheTableOnce, though a cluster returns the keys in parts.
func TestEachKeyIsInTheTableOnce(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		const lines = 1500 // of two keys each
		s := openDatabase(t, db)
		_, err := s.write(t.Context(), sqlOf(`
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2 * ?1)
			INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
				created_at, lifetime, expires_at, unbanned_at, succeeds, usage_id)
			SELECT unhex(format('%064d', i)), 'abcd', 0, 'shop', 'free', 0, 0, 1, 0, 0, 0,
				iif(i > ?1, i - ?1, NULL), iif(i > ?1, i - ?1, NULL) FROM n`, int64(lines)))
		must(t, err)
		var out bytes.Buffer
		cmd := &invocation{process: &process{stdout: &out}, store: s}
		must(t, keyList(t.Context(), cmd))
		var want []string
		for id := 1; id <= lines; id++ {
			want = append(want, fmt.Sprint(id), fmt.Sprint(id+lines))
		}
		if got := allMatches(`(?m)^ *(\d+) `, out.String()); !slices.Equal(got, want) {
			t.Errorf("the table has %d keys, the first are %s, want %d, the first %s",
				len(got), got[:4], len(want), want[:4])
		}
	})
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
	t.Parallel()
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
