package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The form of a key, stated a second time: what issued keys and secret scanners rely on must not
// move with the code.
const keyDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// keyChecksum is CRC-32 (IEEE 802.3, bit by bit) in base 62, most significant digit first, written
// independently of the code.
func keyChecksum(text string) string {
	crc := ^uint32(0)
	for _, c := range []byte(text) {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0xEDB88320*(crc&1)
		}
	}
	crc = ^crc
	digits := ""
	for range 6 {
		digits = string(keyDigits[crc%62]) + digits
		crc /= 62
	}
	return digits
}

// someBody are 32 characters of a key.
const someBody = "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k"

// keyWith is a prefix, a body and their right checksum.
func keyWith(prefix, body string) string { return prefix + body + keyChecksum(prefix+body) }

func TestChecksumsOfIssuedKeysStayValid(t *testing.T) {
	for _, key := range []string{
		"pet_live_" + "00000000000000000000000000000000" + "4HWLXb",
		"pet_live_" + "0123456789ABCDEFGHIJKLMNOPQRSTUV" + "0NxyOy",
		"pet_live_" + "abcdefghijklmnopqrstuvwxyz012345" + "0nGqTr",
		"pet_test_" + "0123456789ABCDEFGHIJKLMNOPQRSTUV" + "31dOTp",
	} {
		if !wellFormed(key, key[:9]) {
			t.Errorf("%s is not well formed; its checksum is now %s", key, checksum(key[:41]))
		}
		if want := keyChecksum(key[:41]); key[41:] != want {
			t.Errorf("the test's own checksum of %s is %s", key, want)
		}
	}
}

func TestNoMistypedKeyIsWellFormed(t *testing.T) {
	key := keyWith("pet_live_", someBody)
	refuse := func(what, token string) {
		t.Helper()
		if wellFormed(token, "pet_live_") {
			t.Errorf("%s: %q is well formed", what, token)
		}
	}
	for i := range key {
		for _, c := range keyDigits + "_- .é\x00" {
			if c != rune(key[i]) {
				refuse("one character changed", key[:i]+string(c)+key[i+1:])
			}
		}
		refuse("one character lost", key[:i]+key[i+1:])
		refuse("one character doubled", key[:i+1]+key[i:])
		refuse("cut off", key[:i])
		if i > 0 && key[i] != key[i-1] {
			refuse("two characters swapped", key[:i-1]+key[i:i+1]+key[i-1:i]+key[i+1:])
		}
	}
	refuse("longer by a zero", key+"0")
	refuse("a line break after it", key+"\n")
	refuse("two keys", key+key)
	refuse("a test key", keyWith("pet_test_", someBody))
	refuse("another prefix with its right checksum", keyWith("pet_LIVE_", someBody))
	refuse("31 characters with their right checksum", keyWith("pet_live_", someBody[1:]))
	refuse("33 characters with their right checksum", keyWith("pet_live_", someBody+"0"))
}

// TestKeysAreRandom: the bounds are ten standard deviations from what is expected, so that chance
// oversteps them less often than once in 10^22 runs.
func TestKeysAreRandom(t *testing.T) {
	const keys = 2000 // 64,000 characters: 1,032 of each, give or take 32
	count, seen := map[rune]int{}, map[secret]bool{}
	for range keys {
		key := newSecret(false)
		seen[key] = true
		for _, c := range key[9:41] {
			count[c]++
		}
	}
	if len(seen) != keys {
		t.Errorf("%d of %d keys are different", len(seen), keys)
	}
	firstEight := 0
	for i, c := range keyDigits {
		n := count[c]
		if n < 1032-320 || n > 1032+320 {
			t.Errorf("%c occurs %d times, want about 1032", c, n)
		}
		if i < 8 {
			firstEight += n
		}
	}
	if firstEight > 8258+850 { // the remainder of a random byte by 62 would give 10,000
		t.Errorf("0 to 7 occur %d times, want about 8258", firstEight)
	}
}

func TestAuthenticate(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		now := testTime
		s := openDatabase(t, db)
		const hour = instant(3_600_000)
		made := instantOf(now)
		good := mustInsertKey(t, s, apiKey{Name: "shop", Plan: "pro", CreatedAt: made})
		expiring := mustInsertKey(t, s, apiKey{CreatedAt: made, lifetime: hour})
		expired := mustInsertKey(t, s, apiKey{CreatedAt: made - hour, lifetime: hour})
		revoked := mustInsertKey(t, s, apiKey{})
		must(t, revokeNow(t.Context(), s, 4, made))
		k := newKeyring(s, false)
		for range 2 { // also when the key is remembered
			key := mustAuthenticate(t, k, good, now)
			policy := []string{`"minute";q=300;w=60, "day";q=10000;w=86400`}
			if key.ID != 1 || key.Name != "shop" || key.quota != planQuota("pro") ||
				key.usageID != 1 || !slices.Equal(key.policy, policy) {
				t.Errorf("the key is %+v", key)
			}
			mustAuthenticate(t, k, expiring, now.Add(time.Hour-time.Millisecond))
		}
		token := string(good)
		for _, c := range []struct {
			policy  string
			headers []string
			now     time.Time
			code    ErrorCode
		}{
			{"no header", nil, now, CodeMissingKey},
			{"a mistyped key", []string{"Bearer " + token[:46] + "-"}, now, CodeInvalidKey},
			{"an unknown key", bearerHeader(newSecret(false)), now, CodeInvalidKey},
			{"an expired key, at the very instant", bearerHeader(expired), now, CodeInvalidKey},
			{"a key that has expired meanwhile", bearerHeader(expiring), now.Add(time.Hour),
				CodeInvalidKey},
			{"a revoked key", bearerHeader(revoked), now, CodeInvalidKey},
			{"two headers with the same key", append(bearerHeader(good), bearerHeader(good)...),
				now, CodeInvalidKey},
		} {
			reported := mustRefuseKey(t, k, c.headers, c.now, c.code)
			if c.code == CodeInvalidKey && reported.Message != "the API key is not valid" {
				t.Errorf("%s looks different from outside: %+v", c.policy, reported)
			}
		}
	})
}

// TestAKeyOfTheOtherEnvironmentIsToldWhatTheServiceTakes, whether there is such a key or not: the
// prefix shows it anyway.
func TestAKeyOfTheOtherEnvironmentIsToldWhatTheServiceTakes(t *testing.T) {
	s := newStore(t)
	live, test := mustInsertKey(t, s, apiKey{}), mustInsertKey(t, s, apiKey{Test: true})
	production, staging := newKeyring(s, false), newKeyring(s, true)
	mustAuthenticate(t, production, live, testTime)
	mustAuthenticate(t, staging, test, testTime)
	for _, c := range []struct {
		policy string
		ring   *keyring
		token  string
		want   string
	}{
		{"a test key in production", production, string(test), "begin with pet_live_"},
		{"one that nobody has made", production, string(newSecret(true)), "begin with pet_live_"},
		{"nothing but the prefix", production, "pet_test_", "begin with pet_live_"},
		{"a live key in staging", staging, string(live), "begin with pet_test_"},
		{"a prefix that is cut off", production, "pet_test", "is not valid"},
		{"another prefix", production, "PET_TEST_" + string(test[9:]), "is not valid"},
		{"something before the prefix", production, "x" + string(test), "is not valid"},
	} {
		header := []string{"Bearer " + c.token}
		reported := mustRefuseKey(t, c.ring, header, testTime, CodeInvalidKey)
		if !strings.HasSuffix(reported.Message, c.want) {
			t.Errorf("%s is told %q, want %q", c.policy, reported.Message, c.want)
		}
	}
}

func TestAMistypedKeyDoesNotTouchTheDatabase(t *testing.T) {
	s := newStore(t)
	k := newKeyring(s, false)
	_ = s.Close()
	key := newSecret(false)
	mistyped := "0"
	if strings.HasSuffix(string(key), mistyped) {
		mistyped = "1"
	}
	mustRefuseKey(t, k, bearerHeader(key[:46]+secret(mistyped)), testTime, CodeInvalidKey)
	mustRefuseKey(t, k, bearerHeader(newSecret(true)), testTime, CodeInvalidKey)
	_, err := k.authenticate(bearerHeader(key), testTime, addressUnspent)
	if _, reported := errors.AsType[*Error](err); err == nil || reported {
		t.Errorf("a key that has to be looked up: %v, want the store's error", err)
	}
}

func TestUnknownKeysAreNotRemembered(t *testing.T) {
	s := newStore(t)
	k := newKeyring(s, false)
	token := newSecret(false)
	mustRefuseKey(t, k, bearerHeader(token), testTime, CodeInvalidKey)
	if n := k.known.size; n != 0 {
		t.Errorf("%d unknown keys are remembered", n)
	}
	_, err := insertKey(t.Context(), s, &apiKey{Plan: freePlan}, token.digest(), "true")
	must(t, err)
	mustAuthenticate(t, k, token, testTime)
}

func TestAChangeByAnotherProgramIsHonouredAfterOneLook(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s, other := openDatabase(t, db), openDatabase(t, db)
		k := newKeyring(s, false)
		token := mustInsertKey(t, s, apiKey{})
		change := func(err error) {
			t.Helper()
			must(t, err)
			must(t, s.refresh(t.Context())) // the service looks four times a second
		}
		change(nil)
		key := mustAuthenticate(t, k, token, testTime)
		if key.quota != planQuota("free") || key.unbannedAt != 0 {
			t.Errorf("at first the key is %+v", key)
		}
		change(errorOf(other.edit(t.Context(), setPlan(1, enterprisePlan, quota{7, 70}))))
		key = mustAuthenticate(t, k, token, testTime)
		if key.quota != (quota{7, 70}) || key.Plan != enterprisePlan ||
			key.policy[0] != `"minute";q=7;w=60, "day";q=70;w=86400` {
			t.Errorf("after a change of plan the key is %+v", key)
		}
		change(unbanKey(t.Context(), other, 1, 12345))
		key = mustAuthenticate(t, k, token, testTime)
		if key.unbannedAt != 12345 {
			t.Errorf("after an unban the key is %+v", key)
		}
		made := mustInsertKey(t, other, apiKey{})
		mustAuthenticate(t, k, made, testTime) // a new key needs no look
		successor, next := *key, newSecret(false)
		later := testTime.Add(time.Minute)
		_, err := rotateKey(t.Context(), other, &successor, next.digest(), instantOf(later))
		change(err)
		mustAuthenticate(t, k, token, testTime)
		mustAuthenticate(t, k, next, testTime)
		mustRefuseKey(t, k, bearerHeader(token), later, CodeInvalidKey)
		change(takeBack(t.Context(), other, next.digest(), restoreExpiry(key, instantOf(later))))
		mustAuthenticate(t, k, token, later)
		mustRefuseKey(t, k, bearerHeader(next), testTime, CodeInvalidKey)
		change(revokeNow(t.Context(), other, 2, instantOf(testTime)))
		mustRefuseKey(t, k, bearerHeader(made), testTime, CodeInvalidKey)
	})
}

// TestAKeyThatHasEndedIsNotRotated, also if it ended after a command had looked.
func TestAKeyThatHasEndedIsNotRotated(t *testing.T) {
	s := newStore(t)
	mustInsertKey(t, s, apiKey{})
	old := &apiKey{ID: 1, Plan: freePlan, CreatedAt: instantOf(testTime)}
	must(t, revokeNow(t.Context(), s, 1, old.CreatedAt))
	id, err := rotateKey(t.Context(), s, old, newSecret(false).digest(), old.CreatedAt+1)
	if id != 0 || err == nil {
		t.Errorf("the successor is key %d, %v", id, err)
	}
}

// TestAKeyWithAnotherExpiryIsNotRotated: to take its successor back would restore the wrong one.
func TestAKeyWithAnotherExpiryIsNotRotated(t *testing.T) {
	s := newStore(t)
	mustInsertKey(t, s, apiKey{})
	old := &apiKey{ID: 1, Plan: freePlan, CreatedAt: instantOf(testTime)}
	must(t, errorOf(s.edit(t.Context(), setLifetime(1, old.CreatedAt, dayMillis))))
	id, err := rotateKey(t.Context(), s, old, newSecret(false).digest(), old.CreatedAt+1)
	if id != 0 || err == nil {
		t.Errorf("the successor is key %d, %v", id, err)
	}
}

// TestAKeyReadDuringAForeignChangeIsNotRemembered: it may have been read before or after that.
func TestAKeyReadDuringAForeignChangeIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, databasePath(t))
		k := newKeyring(s, false)
		first, second := mustInsertKey(t, s, apiKey{}), mustInsertKey(t, s, apiKey{})
		mustRefuseKey(t, k, bearerHeader(newSecret(false)), testTime, CodeInvalidKey) // prepares
		var busy [readers]*sql.Conn
		for i := range busy {
			var err error
			busy[i], err = fileEngine(s).reader.Conn(t.Context())
			must(t, err)
		}
		var lookups sync.WaitGroup
		read := func(token secret) {
			lookups.Go(func() { mustAuthenticate(t, k, token, testTime) })
			synctest.Wait() // it is waiting for a connection now
		}
		read(first)
		s.editsSeen.Add(1) // as a look does that finds what another program has written
		read(second)
		for _, conn := range busy {
			_ = conn.Close()
		}
		lookups.Wait()
		_ = s.Close()
		mustAuthenticate(t, k, second, testTime)
		_, err := k.authenticate(bearerHeader(first), testTime, addressUnspent)
		if err == nil {
			t.Error("what may be outdated is remembered")
		}
	})
}

// wantDeprecatedUse checks when a key is shown to have used the deprecated operation last.
func wantDeprecatedUse(t testing.TB, s *store, id int64, want instant) {
	t.Helper()
	if used := deprecatedUseOf(t, s, id); used != want {
		t.Errorf("the deprecated use of key %d is shown as %v", id, used.time())
	}
}

func TestDeprecatedUsesAreWrittenOnceAndSurviveARestart(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		l := newLedger(s, tenMinutes)
		mustInsertKey(t, s, apiKey{})
		mustInsertKey(t, s, apiKey{})
		later := testTime.Add(time.Second)
		for _, c := range []struct {
			policy string
			uses   []time.Time
			want   int64
		}{
			{"it was not used", nil, 0},
			{"it was used", []time.Time{testTime}, 1},
			{"it was not used again", nil, 0},
			{"it was used twice", []time.Time{testTime, later}, 1},
		} {
			before := commitsOf(s)
			for _, use := range c.uses {
				l.noteDeprecatedUse(1, instantOf(use))
			}
			mustFlush(t, l)
			got := commitsOf(s) - before
			if got != c.want && !s.engine.shared() { // a flush to a cluster also reads bans
				t.Errorf("%s: %d commits, want %d", c.policy, got, c.want)
			}
		}
		_ = s.Close()
		s = openDatabase(t, db)
		wantDeprecatedUse(t, s, 1, instantOf(later))
		wantDeprecatedUse(t, s, 2, 0)
	})
}

// TestAServiceThatWritesLateTakesNoLaterUseBack: each service of a cluster writes what it has seen.
func TestAServiceThatWritesLateTakesNoLaterUseBack(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		first, second := newLedger(s, tenMinutes), newLedger(s, tenMinutes)
		mustInsertKey(t, s, apiKey{})
		later := testTime.Add(time.Second)
		first.noteDeprecatedUse(1, instantOf(testTime))
		second.noteDeprecatedUse(1, instantOf(later))
		mustFlush(t, second)
		mustFlush(t, first)
		wantDeprecatedUse(t, s, 1, instantOf(later))
	})
}

func TestAFailedFlushLosesNoDeprecatedUse(t *testing.T) {
	s := newStore(t)
	l := newLedger(s, tenMinutes)
	mustInsertKey(t, s, apiKey{})
	l.noteDeprecatedUse(1, instantOf(testTime))
	readOnly(t, s, true)
	if err := l.flush(t.Context(), instantOf(testTime).time); !errors.Is(err, errUnavailable) {
		t.Fatalf("the flush does not report that it failed: %v", err)
	}
	readOnly(t, s, false)
	mustFlush(t, l)
	wantDeprecatedUse(t, s, 1, instantOf(testTime))
}

func TestADeprecatedUseDuringAFlushIsWrittenByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openDatabase(t, databasePath(t))
		l := newLedger(s, tenMinutes)
		mustInsertKey(t, s, apiKey{})
		later := testTime.Add(time.Second)
		l.noteDeprecatedUse(1, instantOf(testTime))
		flush := func(ctx context.Context) error { return l.flush(ctx, instantOf(testTime).time) }
		duringFlush(t, s, flush, func() { l.noteDeprecatedUse(1, instantOf(later)) })
		wantDeprecatedUse(t, s, 1, instantOf(testTime))
		mustFlush(t, l)
		wantDeprecatedUse(t, s, 1, instantOf(later))
	})
}

func TestSecretsRedactThemselves(t *testing.T) {
	token := secret(keyWith("pet_live_", someBody))
	type holder struct{ Key secret }
	held := map[string]any{"key": token, "in": holder{token}, "list": []secret{token}}
	var text, asJSON bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("made", "key", token, "held", held)
	slog.New(slog.NewJSONHandler(&asJSON, nil)).Info("made", "key", token, "held", held)
	encoded, err := json.Marshal(held)
	must(t, err)
	printed := map[string]string{
		"slog as text": text.String(),
		"slog as JSON": asJSON.String(),
		"json.Marshal": string(encoded),
		"in an error":  fmt.Errorf("no key %v", token).Error(),
	}
	for _, format := range []string{"%v", "%s", "%#v", "%+v", "%q"} {
		printed[format] = fmt.Sprintf(format, token)
		printed[format+" of what holds it"] = fmt.Sprintf(format, held)
	}
	for how, text := range printed {
		hides := !strings.Contains(text, string(token[9:20]))
		if !hides || !strings.Contains(text, string(token[43:])) {
			t.Errorf("%s: %s, want no more than the last four characters", how, text)
		}
	}
}

func TestOnlyTheDigestOfAKeyIsInTheDatabase(t *testing.T) {
	k := newKeys(t)
	open := openDatabase(t, k.db) // keeps the write-ahead log from being folded away
	tokens := []string{k.mint("create", "-name", "shop"), k.mint("rotate", "1")}
	mustAuthenticate(t, newKeyring(open, false), secret(tokens[0]), time.Now())
	var stored []byte
	read := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		stored = append(stored, content...)
		return err
	}
	must(t, filepath.WalkDir(filepath.Dir(k.db), read))
	for _, token := range tokens {
		sum := sha256.Sum256([]byte(token))
		if !bytes.Contains(stored, sum[:]) || !bytes.Contains(stored, []byte(token[43:])) {
			t.Error("the digest or the last four characters are not in the files")
		}
		for from := len("pet_live_"); from+8 <= len(token); from++ {
			if part := token[from : from+8]; bytes.Contains(stored, []byte(part)) {
				t.Errorf("%q of the key is in the files", part)
			}
		}
	}
}

func FuzzAuthorization(f *testing.F) {
	good := keyWith("pet_live_", someBody)
	for _, seed := range []string{
		"", "Bearer", "Bearer " + good, "bearer   " + good, "Bearer " + good + " ",
		"Bearer " + good + " " + good, "Bearer\t" + good, "Basic " + good, good,
		"Bearer " + good[1:], "Bearer " + keyWith("pet_test_", someBody), "Bearer \x00", "BEARER é",
	} {
		f.Add(seed)
	}
	credentials := regexp.MustCompile(`(?s)^[Bb][Ee][Aa][Rr][Ee][Rr] +(pet_live_.*)$`)
	f.Fuzz(func(t *testing.T, header string) {
		token := bearer(header)
		got := wellFormed(token, "pet_live_")
		match := credentials.FindStringSubmatch(header)
		want := match != nil && len(match[1]) == 47 &&
			match[1] == keyWith("pet_live_", match[1][9:41])
		if got != want || got && token != match[1] {
			t.Errorf("%q: the token is %q, well formed: %v", header, token, got)
		}
	})
}
