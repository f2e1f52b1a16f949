package main

// Tests of the commands that make and change keys. Where time counts, it is fake, and begins at
// midnight on 1 January 2000, UTC.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	Succeeds        *int64  `json:"succeeds"`
	SucceededBy     *int64  `json:"succeededBy"`
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
		want := `"msg":"key created","id":1,"name":"shop front","plan":"free","perMinute":60,"perDay":1000,"expires":"never",` +
			`"test":false,"database":"` +
			filepath.Join(folder, path) + `"}`
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
		{"set -expires 0 -plan free 1", `"msg":"key changed","id":1,"expires":"0","plan":"free"}`},
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
		k.do("set", "-expires", "2d", "1")
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

func TestASuccessorIsForTheSameEnvironment(t *testing.T) {
	k := newKeys(t)
	k.mint("create", "-test")
	k.mint("create")
	if next := k.mint("rotate", "1"); !strings.HasPrefix(next, "pet_test_") {
		t.Errorf("the successor of a test key is %.9s…", next)
	}
	if next := k.mint("rotate", "2"); !strings.HasPrefix(next, "pet_live_") {
		t.Errorf("the successor of a live key is %.9s…", next)
	}
}

// The output of the first rotation was lost, say.
func TestRotatingAgainInsideTheOverlapDoesNotShortenTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeys(t)
		k.mint("create")
		k.mint("create", "-expires", "48h")
		var ends []string
		for _, id := range []string{"1", "2", "1", "2"} {
			k.mint("rotate", "-overlap", "1h", id)
		}
		for _, id := range []string{"3", "4", "5", "6"} {
			ends = append(ends, textOrNull(k.show(id).ExpiresAt))
		}
		want := []string{"null", "2000-01-03T00:00:00Z", "null", "2000-01-03T00:00:00Z"}
		if !slices.Equal(ends, want) {
			t.Errorf("the successors end at %s, want %s", ends, want)
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
