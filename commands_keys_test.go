package main

// Tests of the commands that make, change and show keys, and of the reports of their usage. Where
// time counts, it is fake, and begins at midnight on 1 January 2000, UTC.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// story runs the lines of a text, one after the other. Here a key is made that lives for an hour:
//
//	create -expires 1h                       petstore key create -expires 1h, which must succeed
//	1 state=active perMinute=60              fields of the key 1 that petstore key show -json has
//	wait 1h                                  which takes no time in inKeys
//	1 state=expired
//
// In the place of create there may be rotate, set, revoke and unban. Keys get the ids 1, 2, 3.
func (k testKeys) story(text string) {
	k.Helper()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		verb, args := words[0], words[1:]
		switch verb {
		case "wait":
			pause, err := time.ParseDuration(args[0])
			must(k, err)
			time.Sleep(pause)
		case "create", "rotate":
			k.wantListed(k.mint(verb, args...))
		case "set", "revoke", "unban":
			wantEqual(k, k.do(verb, args...), "", "what is printed by key ", line)
		default:
			k.wantFields(verb, args)
		}
	}
}

// wantListed checks that the newest key is the one with the token.
func (k testKeys) wantListed(token string) {
	k.Helper()
	type listed struct {
		ID       int64
		LastFour string
		Test     bool
	}
	var keys []listed
	must(k, json.Unmarshal([]byte(k.do("list", "-json")), &keys))
	newest := slices.MaxFunc(keys, func(a, b listed) int { return cmp.Compare(a.ID, b.ID) })
	isTest := strings.HasPrefix(token, "pet_test_")
	if newest.LastFour != token[43:] || newest.Test != isTest {
		k.Errorf("the key %.9s…%s is listed as %+v", token, token[43:], newest)
	}
}

// wantFields checks fields of a key that is shown, each as name=value.
func (k testKeys) wantFields(id string, fields []string) {
	k.Helper()
	var shown map[string]json.RawMessage
	must(k, json.Unmarshal([]byte(k.do("show", "-json", id)), &shown))
	for _, field := range fields {
		name, want, _ := strings.Cut(field, "=")
		wantEqual(k, strings.Trim(string(shown[name]), `"`), want, name, " of key ", id)
	}
}

// inKeys runs a test with keys in fake time.
func inKeys(t *testing.T, test func(k testKeys)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(newKeys(t))
	})
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
	mustFail(k, k.db, "key "+line, isUsage, words...)
	wantEqual(k, k.do("list", "-json"), before, "the list after key ", line)
}

func TestKeyCreate(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create
			1 name= plan=free perMinute=60 perDay=1000 expiresAt=null test=false
			create -plan pro -name shop
			2 name=shop plan=pro perMinute=300 perDay=10000 expiresAt=null test=false
			create -plan business -test
			3 name= plan=business perMinute=1000 perDay=100000 expiresAt=null test=true
			create -plan enterprise -per-minute 1 -per-day 2
			4 name= plan=enterprise perMinute=1 perDay=2 expiresAt=null test=false
			create -plan enterprise -per-minute 0100 -per-day 08
			5 plan=enterprise perMinute=100 perDay=8
			create -plan enterprise -per-minute 999999999999999 -per-day 999999999999999
			6 plan=enterprise perMinute=999999999999999 perDay=999999999999999
			create -expires 1s
			7 plan=free perMinute=60 perDay=1000 expiresAt=2000-01-01T00:00:01Z`)
	})
}

// In the wrong folder, key create makes a key that opens nothing.
func TestKeyCreateSaysInWhichDatabase(t *testing.T) {
	t.Chdir(t.TempDir())
	folder, err := os.Getwd()
	must(t, err)
	must(t, os.Symlink("away.db", "link.db"))
	for db, path := range map[string]string{
		"":                                "petstore.db", // the default
		"other.db":                        "other.db",
		filepath.Join(folder, "third.db"): "third.db",
		"link.db":                         "link.db",
	} {
		mustSay(t, db, "key create -name shop", `"msg":"key created","id":1,"name":"shop",`+
			`"plan":"free","perMinute":60,"perDay":1000,"expires":"never","test":false,`+
			`"database":"`+filepath.Join(folder, path)+`"}`)
	}
}

// Nobody would ever know a key that was not shown.
func TestAKeyThatCannotBeShownIsNotStored(t *testing.T) {
	k, unseen := newKeys(t), newKeys(t)
	k.mint("create")
	k.mint("create", "-expires", "48h")
	before := k.do("list", "-json")
	must(t, openDatabase(t, unseen.db).Close())
	for line, db := range map[string]string{
		"create":                k.db,
		"rotate 1":              k.db,
		"rotate 2":              k.db,
		"rotate -overlap 90d 2": k.db,
		"create -plan pro":      unseen.db,
	} {
		mustFailToPrint(t, db, "key "+line, "no key was made")
	}
	wantEqual(t, k.do("list", "-json"), before, "the list of keys")
	wantEqual(t, unseen.do("list", "-json"), "[]\n", "the list of keys in a database without one")
}

// TestAStopTakesAKeyBackThatNobodyTakes. What another program has changed since stays changed, and
// a key that cannot be taken back is named.
func TestAStopTakesAKeyBackThatNobodyTakes(t *testing.T) {
	const undone = "no key was made, since it cannot be shown"
	const left = "key 2 is stored and cannot be shown; petstore key revoke 2 ends it"
	// A row has the command and what happens beside it, and what is said, how many keys there are,
	// and the day in January on which key 1 ends.
	for row, want := range rowsOf(t, `
		create beside nothing => UNDONE, 1, 03
		create beside a lock => LEFT, 2, 03
		rotate 1 beside nothing => UNDONE, 1, 03
		rotate 1 beside a lock => LEFT, 2, 02
		rotate 1 beside set -expires 72h 1 => UNDONE, 1, 04
		rotate -overlap 9d 1 beside nothing => UNDONE, 1, 03
		rotate -overlap 0s 1 beside nothing => UNDONE, 1, 03`) {
		line, meanwhile, _ := strings.Cut(row, " beside ")
		words := strings.Split(want, ", ")
		says := strings.NewReplacer("UNDONE", undone, "LEFT", left).Replace(words[0])
		t.Run(row, func(t *testing.T) {
			inKeys(t, func(k testKeys) {
				k.mint("create", "-expires", "48h")
				stop := startWaiting(k, "key "+line+" -db "+k.db)
				k.story("2 revokedAt=null") // It is stored while it is shown.
				takes := time.Duration(0)
				switch meanwhile {
				case "nothing":
				case "a lock":
					otherProgram(k, k.db, "BEGIN IMMEDIATE")
					takes = takeBackWait
				default:
					k.story(meanwhile)
				}
				began := time.Now()
				wantOneLine(k, stop(), false, "stopped by a signal: "+says, "context canceled")
				wantEqual(k, time.Since(began), takes, "the time after the stop")
				keys := strings.Count(k.do("list"), "live")
				wantEqual(k, fmt.Sprint(keys), words[1], "the number of keys")
				k.story("1 expiresAt=2000-01-" + words[2] + "T00:00:00Z")
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
	const changes = `
		set -plan pro 1 => "msg":"key changed","id":1,"plan":"pro"}
		set -name till 1 => "msg":"key changed","id":1,"name":"till"}
		set -expires 0 -plan free 1 => "msg":"key changed","id":1,"expires":"never","plan":"free"}
		unban 1 => "msg":"key unbanned","id":1}
		unban 1 => "msg":"key is not banned","id":1}
		rotate 1 => "msg":"key rotated","id":1,"successor":2,"overlap":"24h0m0s"}
		revoke 1 => "msg":"key revoked","id":1}
		revoke 1 => "msg":"key was revoked already","id":1}`
	for line, want := range rowsOf(t, changes) {
		edits := readNumber(t, s, editsQuery)
		log := k.logs(line)
		if !strings.HasSuffix(log, want+"\n") || strings.Count(log, "\n") != 1 {
			t.Errorf("key %s logs %s, want one line with %s", line, log, want)
		}
		isNews := !strings.Contains(want, "is not banned")
		wantEqual(t, readNumber(t, s, editsQuery) > edits,
			isNews, "whether key "+line+" is counted as an edit")
	}
}

func TestKeySetChangesWhatItIsToldToAndLeavesTheRest(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create -name shop -expires 48h
			create -name other -expires 48h`)
		other := k.do("show", "-json", "2")
		k.story(`
			wait 49h
			1 state=expired
			set -name till 1
			1 name=till plan=free perMinute=60 perDay=1000 expiresAt=2000-01-03T00:00:00Z
			set -expires 3d 1
			1 name=till plan=free state=active expiresAt=2000-01-06T01:00:00Z
			set -plan pro 1
			1 name=till plan=pro perMinute=300 perDay=10000 expiresAt=2000-01-06T01:00:00Z
			set -expires 0 1
			1 name=till plan=pro expiresAt=null
			set -name shop -expires 10m 1
			1 name=shop plan=pro expiresAt=2000-01-03T01:10:00Z
			set -plan enterprise -per-minute 5 -per-day 6 1
			1 name=shop plan=enterprise perMinute=5 perDay=6 expiresAt=2000-01-03T01:10:00Z
			set -per-minute 7 1
			1 name=shop plan=enterprise perMinute=7 perDay=6 expiresAt=2000-01-03T01:10:00Z
			set -per-day 80 1
			1 name=shop plan=enterprise perMinute=7 perDay=80 expiresAt=2000-01-03T01:10:00Z
			set -plan enterprise -per-minute 9 -name all -expires 0 1
			1 name=all plan=enterprise perMinute=9 perDay=80 expiresAt=null
			set -plan business 1
			1 name=all plan=business perMinute=1000 perDay=100000 expiresAt=null
			set -plan free -expires 1s 1
			1 name=all plan=free perMinute=60 perDay=1000 expiresAt=2000-01-03T01:00:01Z
			set -plan free 2`)
		other = strings.Replace(other, "active", "expired", 1)
		wantEqual(k, k.do("show", "-json", "2"), other, "the other key")
		// The log tells the end, and not the lifetime.
		const ends = `"id":1,"expires":"2000-01-05 01:00:00Z"}`
		wantPart(k, k.logs("set -expires 2d 1"), ends+"\n", "the log")
	})
}

func TestAChangeOfAKeyThatCannotBeIsRefused(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create -plan enterprise -per-minute 5 -per-day 6
			create -plan pro
			create -expires 1h
			create
			revoke 4
			wait 1h`)
		for line, reason := range map[string]string{
			"set -per-minute 9 2":               "go with -plan enterprise only",
			"set -plan free -per-day 9 2":       "go with -plan enterprise only",
			"set -plan free -per-day 9 1":       "go with -plan enterprise only",
			"set -plan enterprise 2":            "enterprise needs -per-minute and -per-day",
			"set -plan enterprise -per-day 9 2": "enterprise needs -per-minute and -per-day",
		} {
			k.refuses(line, true, reason, "has the plan")
		}
		// A key may be revoked after the command has read it.
		changed, err := openDatabase(k, k.db).edit(k.Context(), revokeKey(2, 1), setName(2, "late"))
		must(k, err)
		k.story("2 name=")
		wantEqual(k, changed[1].affected, 0, "the number of revoked keys that are changed")
		otherProgram(k, k.db, `CREATE TRIGGER full BEFORE UPDATE OF revoked_at, name ON api_keys
			BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`)
		for line, reason := range map[string]string{
			"set -plan pro 4":   "key 4 is revoked",
			"set -name x 4":     "key 4 is revoked",
			"set -expires 1h 4": "key 4 is revoked",
			"rotate 4":          "key 4 is revoked or expired",
			"rotate 3":          "key 3 is revoked or expired",
			"revoke 1":          "the disk is full",
			"set -name till 1":  "the disk is full",
		} {
			k.refuses(line, false, reason)
		}
	})
}

func TestKeyRotate(t *testing.T) {
	inKeys(t, func(k testKeys) {
		now := instantOf(time.Now())
		k.story("create -plan enterprise -per-minute 5 -per-day 50 -name shop")
		k.write(saveUsage(1, &usage{
			minute: bucket{used: 3, ends: now + minuteMillis},
			day:    bucket{used: 30, ends: now + dayMillis},
		}))
		k.story(`
			wait 1s
			rotate 1
			1 succeeds=null succeededBy=2 expiresAt=2000-01-02T00:00:01Z
			2 name=shop plan=enterprise perMinute=5 perDay=50 usedThisMinute=3 usedToday=30
			2 createdAt=2000-01-01T00:00:01Z lastUsedAt=2000-01-01T00:00:00Z
			2 state=active expiresAt=null revokedAt=null succeeds=1 succeededBy=null
			rotate -overlap 1h 2
			rotate -overlap 0s 3
			2 expiresAt=2000-01-01T01:00:01Z
			3 expiresAt=2000-01-01T00:00:01Z
			4 expiresAt=null`)
		// One line of rotations has one usage.
		k.write(saveUsage(1, &usage{day: bucket{used: 31, ends: now + dayMillis}}))
		k.story(`
			1 usedToday=31
			2 usedToday=31
			3 usedToday=31
			4 usedToday=31`)
	})
}

// TestTheEndsOfAKeyAndItsSuccessors are told in stories.
func TestTheEndsOfAKeyAndItsSuccessors(t *testing.T) {
	for what, story := range map[string]string{
		"the output of a rotation is lost, and it is done again": `
			create
			create -expires 48h -test
			rotate -overlap 1h 1
			rotate -overlap 1h 2
			rotate -overlap 1h 1
			rotate -overlap 1h 2
			rotate -overlap 1h 5
			1 succeeds=null succeededBy=5 expiresAt=2000-01-01T01:00:00Z test=false
			2 succeeds=null succeededBy=6 expiresAt=2000-01-01T01:00:00Z test=true
			3 succeeds=1 succeededBy=null expiresAt=null test=false
			4 succeeds=2 succeededBy=null expiresAt=2000-01-03T00:00:00Z test=true
			5 succeeds=1 succeededBy=7 expiresAt=2000-01-01T01:00:00Z test=false
			6 succeeds=2 succeededBy=null expiresAt=2000-01-03T00:00:00Z test=true
			7 succeeds=5 succeededBy=null expiresAt=null test=false`,
		"an overlap extends no key, and its successor lives as long as if it were new": `
			create -expires 48h
			wait 36h
			rotate -overlap 240h 1
			1 expiresAt=2000-01-03T00:00:00Z
			2 expiresAt=2000-01-04T12:00:00Z`,
		"a successor lives as long as its predecessor was last told to": `
			create -expires 48h
			wait 1h
			set -expires 3d 1
			rotate 1
			2 expiresAt=2000-01-04T01:00:00Z`,
		"a revocation keeps its first time": `
			create
			revoke 1
			1 revokedAt=2000-01-01T00:00:00Z
			wait 1h
			revoke 1
			1 revokedAt=2000-01-01T00:00:00Z`,
	} {
		t.Run(what, func(t *testing.T) {
			inKeys(t, func(k testKeys) { k.story(story) })
		})
	}
}

// TestAKeyThatWasRotatedNamesItsSuccessor, which may be the one that was meant.
func TestAKeyThatWasRotatedNamesItsSuccessor(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create
			rotate 1
			create
			revoke 3`)
		const warning = `"msg":"this key was rotated before; its successor stays as it is",` +
			`"id":1,"successor":2}` + "\n"
		wantPart(k, k.logs("set -name till 1"), warning, "the log of key set")
		wantCount(k, k.logs("set -name till 2"), "WARN", 0, "the log of a key without a successor")
		wantPart(k, k.logs("rotate 1"), warning, "the log of key rotate")
		k.story("revoke 1")
		const instead = "; it was rotated into key 4: name that one, or make a new one"
		k.refuses("set -name shop 1", false, "key 1 is revoked"+instead)
		k.refuses("rotate 1", false, "key 1 is revoked or expired"+instead)
		k.refuses("rotate 3", false, "key 3 is revoked or expired; make a new one")
	})
}

func TestKeyUnbanLiftsTheBanOfAllKeysThatShareTheUsage(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create
			rotate 1
			create`)
		now := instantOf(time.Now())
		banned := &usage{bannedAt: now, bannedUntil: now + 600_000}
		k.write(saveUsage(1, banned), saveUsage(3, banned))
		k.story(`
			wait 1m
			1 bannedUntil=2000-01-01T00:10:00Z
			2 bannedUntil=2000-01-01T00:10:00Z
			3 bannedUntil=2000-01-01T00:10:00Z
			unban 1
			1 bannedUntil=null
			2 bannedUntil=null
			3 bannedUntil=2000-01-01T00:10:00Z`)
	})
}

// prints checks what a key command prints. The last four characters of keys are stars in it, and
// JSON is compact.
func (k testKeys) prints(line, want string) {
	k.Helper()
	args := strings.Fields(line)
	got := k.do(args[0], args[1:]...)
	if strings.Contains(line, "-json") {
		got, want = compactJSON(k, got), compactJSON(k, want)
	}
	lastFour := regexp.MustCompile(`("lastFour":"|live |test )\w{4}`)
	wantEqual(k, lastFour.ReplaceAllString(got, "${1}****"), want, "what is printed by key ", line)
}

func compactJSON(t testing.TB, text string) string {
	t.Helper()
	var compact bytes.Buffer
	must(t, json.Compact(&compact, []byte(text)))
	return compact.String()
}

// TestKeysAreShownAsATableAndAsJSON: one is banned, and so is its successor, which shares its ban
// and usage; the windows and the ban of the revoked one are over.
func TestKeysAreShownAsATableAndAsJSON(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create -name shop -plan pro
			create -name revoked -expires 48h -test
			rotate 1
			set -expires 0 1
			create -name expired -expires 1s
			create -name ending -expires 48h
			create -name busy -test -expires 361h
			create -name active
			revoke 2
			wait 1s`)
		now := instantOf(time.Now())
		used := func(minute, day, ends int64) *usage {
			return &usage{
				minute: bucket{used: minute, ends: now + instant(ends)},
				day:    bucket{used: day, ends: now + instant(ends)},
			}
		}
		banned, over := used(7, 70, 2000), used(8, 80, 0)
		banned.bannedAt, banned.bannedUntil = now, now+600_500
		over.bannedAt, over.bannedUntil = now-9, now
		k.write(saveUsage(1, banned), saveUsage(2, over), saveUsage(6, used(70, 800, 1)),
			sqlOf("UPDATE api_keys SET deprecated_use_at = ? WHERE id = 7", int64(now-1)))
		k.prints("list", strings.TrimPrefix(`
ID   KEY        PLAN  MINUTE  DAY       STATE                               NAME
1    live ****  pro   7/300   70/10000  banned to 2000-01-01 00:10:01Z      shop
  3  live ****  pro   7/300   70/10000  banned to 2000-01-01 00:10:01Z      shop
2    test ****  free  0/60    0/1000    revoked 2000-01-01 00:00:00Z        revoked
4    live ****  free  0/60    0/1000    expired 2000-01-01 00:00:01Z        expired
5    live ****  free  0/60    0/1000    active; ends 2000-01-03 00:00:00Z   ending
6    test ****  free  70/60   800/1000  active; ends 2000-01-16 01:00:00Z   busy
7    live ****  free  0/60    0/1000    active; deprecated call 2000-01-01  active
`, "\n"))
		k.prints("show 6", strings.TrimPrefix(`
ID  KEY        PLAN  MINUTE  DAY       STATE                              NAME
6   test ****  free  70/60   800/1000  active; ends 2000-01-16 01:00:00Z  busy
`, "\n"))
		const first = `{"id":1,"name":"shop","plan":"pro","lastFour":"****",
			"createdAt":"2000-01-01T00:00:00Z","expiresAt":null,"revokedAt":null,
			"perMinute":300,"perDay":10000,"usedThisMinute":7,"usedToday":70,
			"bannedUntil":"2000-01-01T00:10:01.5Z","deprecatedUseAt":null,
			"lastUsedAt":"1999-12-31T23:59:03Z","test":false,"state":"banned",
			"succeeds":null,"succeededBy":3}`
		k.prints("show -json 1", first)
		k.story(`
			2 state=revoked usedThisMinute=0 usedToday=0 bannedUntil=null deprecatedUseAt=null
			2 revokedAt=2000-01-01T00:00:00Z lastUsedAt=1999-12-31T23:59:01Z
			3 state=banned usedThisMinute=7 usedToday=70 bannedUntil=2000-01-01T00:10:01.5Z
			4 state=expired lastUsedAt=null
			7 state=active deprecatedUseAt=2000-01-01T00:00:00.999Z`)
		var all []string
		for _, id := range strings.Fields("1 3 2 4 5 6 7") { // as in the table
			all = append(all, k.do("show", "-json", id))
		}
		want := compactJSON(k, "["+strings.Join(all, ",")+"]")
		wantEqual(k, compactJSON(k, k.do("list", "-json")), want, "the list of keys")
	})
}

// TestAnInstantThatJSONCannotHoldIsAnError: a hand has stored one after the year 9999.
func TestAnInstantThatJSONCannotHoldIsAnError(t *testing.T) {
	db := madeDatabase(t)
	mustSay(t, db, "key create")
	makeOtherDatabase(t, db, "UPDATE api_keys SET expires_at = 300000000000000")
	for _, command := range []string{"key list -json", "key show -json 1"} {
		mustFail(t, db, command, false, "year outside of range")
	}
}

// A key and its successors are one block, however long ago they were made.
func TestAKeyAndItsSuccessorsAreABlockOfTheTable(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create -name shop
			create -name till -expires 10d
			rotate -overlap 1h 1
			rotate 2
			wait 2h
			rotate -overlap 0 3
			set -name front -expires 1d 5
			revoke 4`)
		k.prints("list", strings.TrimPrefix(`
ID   KEY        PLAN  MINUTE  DAY     STATE                              NAME
1    live ****  free  0/60    0/1000  expired 2000-01-01 01:00:00Z       shop
  3  live ****  free  0/60    0/1000  expired 2000-01-01 02:00:00Z       shop
  5  live ****  free  0/60    0/1000  active; ends 2000-01-02 02:00:00Z  front
2    live ****  free  0/60    0/1000  active; ends 2000-01-02 00:00:00Z  till
  4  live ****  free  0/60    0/1000  revoked 2000-01-01 02:00:00Z       till
`, "\n"))
	})
}

// TestEachKeyIsInTheTableOnce, though a cluster returns the keys in parts.
func TestEachKeyIsInTheTableOnce(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		const lines = 1500 // of two keys each
		s := openDatabase(t, db)
		mustWrite(t, s, sqlOf(`
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2 * ?1)
			INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
				created_at, lifetime, expires_at, unbanned_at, succeeds, usage_id)
			SELECT unhex(format('%064d', i)), 'abcd', 0, 'shop', 'free', 0, 0, 1, 0, 0, 0,
				iif(i > ?1, i - ?1, NULL), iif(i > ?1, i - ?1, NULL) FROM n`, int64(lines)))
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

func TestReportsOfADatabaseWithoutKeysAreEmpty(t *testing.T) {
	k := newKeys(t)
	openDatabase(t, k.db)
	for line, want := range map[string]string{
		"list":        "ID  KEY  PLAN  MINUTE  DAY  STATE  NAME\n",
		"list -json":  "[]",
		"usage":       "ID   ADMITTED    REFUSED    ERRORS  PLAN  NAME\n",
		"usage -json": "[]",
	} {
		k.prints(line, want)
	}
}

func TestAReportThatCannotBeShownIsAnError(t *testing.T) {
	db := madeDatabase(t)
	for _, line := range []string{
		"show 1", "show -json 1", "list", "list -json", "usage", "usage 1",
	} {
		mustFailToPrint(t, db, "key "+line)
	}
}

// TestKeyUsageIsShownAsATableAndAsJSON, a line for the keys of one line of rotations. A key of an
// earlier version may have a name that turns round what follows it.
func TestKeyUsageIsShownAsATableAndAsJSON(t *testing.T) {
	inKeys(t, func(k testKeys) {
		k.story(`
			create -name quiet
			create -name before -plan pro
			create -name refused -plan business
			create -name unused
			rotate 2
			rotate 5
			set -name busy 6
			revoke 1`)
		k.write(
			sqlOf("UPDATE api_keys SET name = ? WHERE id = 3", "\u202erefused"),
			sqlOf(`INSERT INTO usage_days (usage_id, day, admitted, refused, errors) VALUES
				(1, 10957, 5, 0, 0),
				(2, 10957, 50, 3, 0),
				(2, 10957 - 2, 1000, 0, 7),
				(2, 10957 - 29, 1, 0, 0),
				(2, 10957 - 30, 9000, 0, 0),
				(2, 10957 - 399, 90000, 1, 2),
				(3, 10957 - 1, 6, 2100, 0)`), // 10957 is 1 January 2000
		)
		const busy = `{"id":6,"name":"busy","plan":"pro","days":[
			{"day":"1999-12-03","admitted":1,"refused":0,"errors":0},
			{"day":"1999-12-30","admitted":1000,"refused":0,"errors":7},
			{"day":"2000-01-01","admitted":50,"refused":3,"errors":0}]}`
		const refused = `{"id":3,"name":"` + "\u202e" + `refused","plan":"business","days":[
			{"day":"1999-12-31","admitted":6,"refused":2100,"errors":0}]}`
		const quiet = `{"id":1,"name":"quiet","plan":"free","days":[
			{"day":"2000-01-01","admitted":5,"refused":0,"errors":0}]}`
		const unused = `{"id":4,"name":"unused","plan":"free","days":[]}`
		for line, want := range map[string]string{
			"usage -json":            busy + "," + refused + "," + quiet + "," + unused,
			"usage -json 2":          busy,
			"usage -json 5":          busy,
			"usage -json 6":          busy,
			"usage -json 4":          unused,
			"usage -json -days 2 3":  refused,
			"usage -json -days 01 1": quiet,
		} {
			k.prints(line, "["+want+"]")
		}
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
		wantPart(k, k.do("usage", "-days", "400"), "\n6      100051 ",
			"the table of 400 days")
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
	takesSeconds(t)
	const keys, days = 10_100, 2
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustWrite(t, s,
			sqlOf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
				INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
					created_at, lifetime, expires_at, unbanned_at)
				SELECT unhex(format('%064d', i)), 'abcd', 0, 'shop', 'free', 0, 0, 1, 0, 0, 0
				FROM n`, int64(keys)),
			sqlOf(`WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ? - 1)
				INSERT INTO usage_days (usage_id, day, admitted, refused, errors)
				SELECT id, i, id, 1, 1 FROM api_keys, n`, int64(days)))
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
			cmd := commandOn(t, s.engine, c.line, held.note)
			cmd.stdout = held
			cmd.now = instant(days-1) * dayMillis
			cmd.days = days
			must(t, c.run(t.Context(), cmd))
			if held.lines != c.lines || held.most > c.most || held.longest > 1000 {
				t.Errorf("%s holds %+v, want %d lines, %d rows at most",
					c.line, held, c.lines, c.most)
			}
		}
	})
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
	for line := range linesOf(`
		key show 1
		key rotate 1
		key revoke 1
		key unban 1
		key set -plan pro -name x -expires 1h 1`) {
		now := instantOf(time.Now())
		k.write(saveUsage(1, &usage{bannedAt: now, bannedUntil: now + dayMillis}),
			sqlOf("UPDATE api_keys SET revoked_at = 0, expires_at = 0, unbanned_at = 0"))
		sent := 0
		check := func(st statement, _ []any) {
			sent++
			if plan := planOf(t, k.db, st); all.MatchString(plan) {
				t.Errorf("%s reads all rows:\n%s\n%s", line, st.query, plan)
			}
		}
		must(t, onStore(t, storeOn(&watchedEngine{s.engine, check}), io.Discard, line))
		if sent == 0 {
			t.Errorf("%s sends no statement", line)
		}
	}
}

// TestReportsReadARowOnce: a line of 10,000 rotations took half a minute, and an export of one
// status counted by reading all pets.
func TestReportsReadARowOnce(t *testing.T) {
	db := madeDatabase(t)
	s := openDatabase(t, db)
	for line, again := range map[string]string{
		"key list": "CORRELATED", "key list -json": "CORRELATED",
		"pet export -status sold": "SCAN pets",
	} {
		check := func(st statement, columns []any) {
			if plan := planOf(t, db, st); columns == nil && strings.Contains(plan, again) {
				t.Errorf("%s reads more than it needs:\n%s\n%s", line, st.query, plan)
			}
		}
		must(t, onStore(t, storeOn(&watchedEngine{s.engine, check}), io.Discard, line))
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

// TestACopyOfTheOtherEnvironmentIsToldApart, when it is restored and when a service starts on it:
// otherwise it is ready, and all callers get 401.
func TestACopyOfTheOtherEnvironmentIsToldApart(t *testing.T) {
	const ofStart, ofRestore = "all keys are of the other environment, and get 401",
		"all keys of the copy are pet_test_ keys"
	for what, c := range map[string]struct {
		create, serve   string
		starts, restore bool // with a warning
	}{
		"production": {"", "", false, false}, "staging": {"-test", "-staging", false, true},
		"staging into production": {"-test", "", true, true},
		"production into staging": {"", "-staging", true, false},
	} {
		t.Run(what, func(t *testing.T) {
			k := newKeys(t)
			k.mint("create", strings.Fields(c.create)...)
			copied := filepath.Join(t.TempDir(), "copy.db")
			mustSay(t, k.db, "backup "+copied)
			db := databasePath(t)
			_, log, err := petstore(t, nil, "restore", "-db", db, copied)
			must(t, err)
			wantEqual(t, strings.Contains(log, ofRestore), c.restore, "whether restore warns")
			cmd, err := parseCommand("serve", strings.Fields(c.serve))
			must(t, err)
			var started logBuffer
			cmd.log = newLogger(&started, "json", 0)
			must(t, printFirstKey(t.Context(), cmd, openDatabase(t, db), "http://localhost"))
			wantEqual(t, strings.Contains(started.String(), ofStart), c.starts,
				"whether the start warns")
		})
	}
}
