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

// The form of a key, stated a second time: what issued keys and secret scanners
// rely on must not move with the code.
const authDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

var authForm = regexp.MustCompile(`^pet_(live|test)_[0-9A-Za-z]{32}[0-9A-Za-z]{6}$`)

// authChecksum is CRC-32 (IEEE 802.3, bit by bit) in base 62, most significant
// digit first, written independently of the code.
func authChecksum(text string) string {
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
		digits = string(authDigits[crc%62]) + digits
		crc /= 62
	}
	return digits
}

// authMake is the well-formed key with a prefix and a body of 32 characters.
func authMake(prefix, body string) string { return prefix + body + authChecksum(prefix+body) }

// authInsert stores a key and returns its token.
func authInsert(t testing.TB, s *store, k apiKey) secret {
	t.Helper()
	if k.Plan == "" {
		k.Plan = "free"
	}
	token := newSecret(k.Test)
	if _, err := insertKey(t.Context(), s, &k, token, false); err != nil {
		t.Fatal(err)
	}
	return token
}

// authUnspent says that the caller's address is not spent.
func authUnspent() bool { return false }

func authHeader(token secret) []string { return []string{"Bearer " + string(token)} }

func authAllow(t testing.TB, k *keyring, token secret, now time.Time) *apiKey {
	t.Helper()
	key, err := k.authenticate(authHeader(token), now, authUnspent)
	if err != nil {
		t.Fatalf("the key is refused: %v", err)
	}
	return key
}

// authDeny demands an *Error with the code, and no key.
func authDeny(t testing.TB, k *keyring, headers []string, now time.Time, code ErrorCode) Error {
	t.Helper()
	key, err := k.authenticate(headers, now, authUnspent)
	var reported *Error
	if key != nil || !errors.As(err, &reported) || reported.Code != code || reported.Status != 401 {
		t.Fatalf("%q: %v, %v, want %s", headers, key, err, code)
	}
	return *reported
}

func TestFormOfKeys(t *testing.T) {
	for _, c := range []struct {
		test   bool
		prefix string
	}{{false, "pet_live_"}, {true, "pet_test_"}} {
		for range 100 {
			key := string(newSecret(c.test))
			if !authForm.MatchString(key) || !strings.HasPrefix(key, c.prefix) {
				t.Fatalf("%s has not the form of a key", key)
			}
			if body := key[len(c.prefix) : len(key)-6]; key != authMake(c.prefix, body) {
				t.Fatalf("the checksum of %s should be that of %s", key, authMake(c.prefix, body))
			}
			if !wellFormed(key, c.prefix) {
				t.Fatalf("%s is not well formed", key)
			}
		}
	}
}

func TestChecksumsOfIssuedKeysStayValid(t *testing.T) {
	for _, key := range []string{
		"pet_live_" + "00000000000000000000000000000000" + "4HWLXb",
		"pet_live_" + "0123456789ABCDEFGHIJKLMNOPQRSTUV" + "0NxyOy",
		"pet_live_" + "abcdefghijklmnopqrstuvwxyz012345" + "0nGqTr",
		"pet_test_" + "00000000000000000000000000000000" + "1dcfa6",
		"pet_test_" + "0123456789ABCDEFGHIJKLMNOPQRSTUV" + "31dOTp",
		"pet_test_" + "abcdefghijklmnopqrstuvwxyz012345" + "2qGfWw",
	} {
		if !wellFormed(key, key[:9]) {
			t.Errorf("%s is not well formed; its checksum is now %s", key, checksum(key[:41]))
		}
		if want := key[41:]; authChecksum(key[:41]) != want {
			t.Errorf("the test's own checksum of %s is %s", key, authChecksum(key[:41]))
		}
	}
}

func TestNoMistypedKeyIsWellFormed(t *testing.T) {
	key := authMake("pet_live_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k")
	refuse := func(what, token string) {
		t.Helper()
		if wellFormed(token, "pet_live_") {
			t.Errorf("%s: %q is well formed", what, token)
		}
	}
	if !wellFormed(key, "pet_live_") {
		t.Fatal("the key itself is not well formed")
	}
	for i := range key {
		for _, c := range authDigits + "_- .é\x00" {
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
	refuse("longer by a space", key+" ")
	refuse("a line break after it", key+"\n")
	refuse("two keys", key+key)
	refuse("a test key", authMake("pet_test_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k"))
	refuse("another prefix with its right checksum", authMake("pet_LIVE_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k"))
	refuse("31 random characters with their right checksum", authMake("pet_live_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0"))
	refuse("33 random characters with their right checksum", authMake("pet_live_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k0"))
	refuse("a character outside base 62 with its right checksum", authMake("pet_live_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0_"))
}

// The bounds are ten standard deviations from what is expected, so that chance
// oversteps them less often than once in 10^22 runs.
func TestKeysAreRandom(t *testing.T) {
	const keys = 2000 // 64,000 characters: 1,032 of each, give or take 32
	count, seen, firstEight := map[rune]int{}, map[secret]bool{}, 0
	for range keys {
		key := newSecret(false)
		seen[key] = true
		for _, c := range key[9:41] {
			count[c]++
			if c < '8' {
				firstEight++
			}
		}
	}
	if len(seen) != keys {
		t.Errorf("%d of %d keys are different", len(seen), keys)
	}
	for _, c := range authDigits {
		if n := count[c]; n < 1032-320 || n > 1032+320 {
			t.Errorf("%c occurs %d times, want about 1032", c, n)
		}
	}
	// The remainder of a random byte by 62 would give these 10,000.
	if firstEight > 8258+850 {
		t.Errorf("0 to 7 occur %d times, want about 8258", firstEight)
	}
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		policy  string
		headers []string
		want    string
	}{
		{"no header is no credentials", nil, ""},
		{"an empty header is no credentials", []string{""}, ""},
		{"another scheme is no credentials", []string{"Basic dXNlcjpwYXNz"}, ""},
		{"a scheme that only begins with Bearer is another", []string{"Bearers abc"}, ""},
		{"the scheme alone is no credentials", []string{"Bearer"}, ""},
		{"nor is the scheme with spaces", []string{"Bearer   "}, ""},
		{"a token without a scheme is no credentials", []string{"abc"}, ""},
		{"one token after one space", []string{"Bearer abc"}, "abc"},
		{"one token after several spaces", []string{"Bearer    abc"}, "abc"},
		{"the scheme in lower case", []string{"bearer abc"}, "abc"},
		{"the scheme in upper case", []string{"BEARER abc"}, "abc"},
		{"the scheme in mixed case", []string{"bEaReR abc"}, "abc"},
		{"the token's case is kept", []string{"Bearer aBc"}, "aBc"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			if got := bearer(c.headers); got != c.want {
				t.Errorf("the token is %q, want %q", got, c.want)
			}
		})
	}
}

func TestAuthenticate(t *testing.T) { engines(t, testAuthenticate) }

func testAuthenticate(t *testing.T, db string) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	s := storeOpen(t, db)
	good := authInsert(t, s, apiKey{Name: "shop", Plan: "pro", CreatedAt: instantOf(now)})
	expiring := authInsert(t, s, apiKey{CreatedAt: instantOf(now), lifetime: 3_600_000})
	expired := authInsert(t, s, apiKey{CreatedAt: instantOf(now.Add(-time.Hour)), lifetime: 3_600_000})
	revoked := authInsert(t, s, apiKey{})
	if err := authRevoke(t.Context(), s, 4, instantOf(now)); err != nil {
		t.Fatal(err)
	}
	test := authInsert(t, s, apiKey{Test: true})
	live, staging := newKeyring(s, false), newKeyring(s, true)

	for range 2 { // also when the key is remembered
		key := authAllow(t, live, good, now)
		if key.ID != 1 || key.Name != "shop" || key.Plan != "pro" || key.quota != (quota{300, 10_000}) || key.usageID != 1 ||
			!slices.Equal(key.policy, []string{`"minute";q=300;w=60, "day";q=10000;w=86400`}) {
			t.Errorf("the key is %+v", key)
		}
		authAllow(t, live, expiring, now.Add(time.Hour-time.Millisecond))
		authAllow(t, staging, test, now)
	}
	for _, header := range []string{"bearer " + string(good), "BEARER    " + string(good)} {
		if _, err := live.authenticate([]string{header}, now, authUnspent); err != nil {
			t.Errorf("%v: %v", header[:10], err)
		}
	}

	for _, c := range []struct {
		policy  string
		ring    *keyring
		headers []string
		now     time.Time
		code    ErrorCode
	}{
		{"no header", live, nil, now, CodeMissingKey},
		{"an empty header", live, []string{""}, now, CodeMissingKey},
		{"the scheme alone", live, []string{"Bearer"}, now, CodeMissingKey},
		{"another scheme", live, []string{"Basic " + string(good)}, now, CodeMissingKey},
		{"the key without the scheme", live, []string{string(good)}, now, CodeMissingKey},
		{"no key at all", live, []string{"Bearer abc"}, now, CodeInvalidKey},
		{"a mistyped key", live, []string{"Bearer " + string(good[:46]) + "-"}, now, CodeInvalidKey},
		{"an unknown key", live, authHeader(newSecret(false)), now, CodeInvalidKey},
		{"an expired key, at the very instant", live, authHeader(expired), now, CodeInvalidKey},
		{"a key that was good and has expired", live, authHeader(expiring), now.Add(time.Hour), CodeInvalidKey},
		{"a revoked key", live, authHeader(revoked), now, CodeInvalidKey},
		{"two tokens", live, []string{"Bearer " + string(good) + " " + string(good)}, now, CodeInvalidKey},
		{"two headers with the same key", live, append(authHeader(good), authHeader(good)...), now, CodeInvalidKey},
		{"two headers, the second with a key", live, append(authHeader(newSecret(false)), authHeader(good)...), now, CodeInvalidKey},
		{"two headers, the first with a key", live, append(authHeader(good), "Basic abc"), now, CodeInvalidKey},
	} {
		t.Run(c.policy, func(t *testing.T) {
			reported := authDeny(t, c.ring, c.headers, c.now, c.code)
			if c.code == CodeInvalidKey && reported != *newError(CodeInvalidKey, "the API key is not valid") {
				t.Errorf("unusable keys look different from outside: %+v", reported)
			}
		})
	}

	// Which environment a key is for can be seen in it, so that nothing is given away
	// by saying so, whether there is such a key or not.
	for _, c := range []struct {
		policy string
		ring   *keyring
		token  string
		takes  string
	}{
		{"a test key in production", live, string(test), "pet_live_"},
		{"a test key that nobody has made", live, string(newSecret(true)), "pet_live_"},
		{"a test key with a wrong checksum", live, string(test[:46]) + "-", "pet_live_"},
		{"a test key that is cut off", live, "pet_test_" + "abc", "pet_live_"},
		{"nothing but the prefix", live, "pet_test_", "pet_live_"},
		{"a live key in staging", staging, string(good), "pet_test_"},
		{"a revoked live key in staging", staging, string(revoked), "pet_test_"},
		{"a live key with a wrong checksum", staging, string(good[:46]) + "-", "pet_test_"},
	} {
		t.Run(c.policy, func(t *testing.T) {
			reported := authDeny(t, c.ring, []string{"Bearer " + c.token}, now, CodeInvalidKey)
			if want := "this service takes only API keys that begin with " + c.takes; reported.Message != want {
				t.Errorf("it says %q, want %q", reported.Message, want)
			}
		})
	}
	for _, token := range []string{"pet_test", "PET_TEST_" + string(test[9:]), " pet-test_abc", "pet_prod_abc", "x" + string(test)} {
		if reported := authDeny(t, live, []string{"Bearer " + token}, now, CodeInvalidKey); reported.Message != "the API key is not valid" {
			t.Errorf("%q, which is no key of the other environment, is told %q", token, reported.Message)
		}
	}
}

func TestAMistypedKeyDoesNotTouchTheDatabase(t *testing.T) {
	db := filepath.Join(t.TempDir(), "pets.db")
	now := time.Now()
	s := storeOpen(t, db)
	k := newKeyring(s, false)
	_ = s.Close()
	key := string(newSecret(false))
	last := "0"
	if strings.HasSuffix(key, last) {
		last = "1"
	}
	authDeny(t, k, []string{"Bearer " + key[:len(key)-1] + last}, now, CodeInvalidKey)
	authDeny(t, k, authHeader(newSecret(true)), now, CodeInvalidKey)

	var reported *Error
	if _, err := k.authenticate([]string{"Bearer " + key}, now, authUnspent); err == nil || errors.As(err, &reported) {
		t.Errorf("a key that has to be looked up: %v, want the store's error, which is nobody's fault", err)
	}
}

func TestAKnownKeyNeedsNoDatabase(t *testing.T) {
	db := filepath.Join(t.TempDir(), "pets.db")
	now := time.Now()
	s := storeOpen(t, db)
	k := newKeyring(s, false)
	var tokens []secret
	for range 3 {
		token := authInsert(t, s, apiKey{CreatedAt: instantOf(now), lifetime: 3_600_000})
		authAllow(t, k, token, now)
		tokens = append(tokens, token)
	}
	_ = s.Close()
	for _, token := range tokens {
		authAllow(t, k, token, now)
		authDeny(t, k, authHeader(token), now.Add(time.Hour), CodeInvalidKey) // and expires all the same
	}
}

func TestUnknownKeysAreNotRemembered(t *testing.T) { engines(t, testUnknownKeysAreNotRemembered) }

func testUnknownKeysAreNotRemembered(t *testing.T, db string) {
	now := time.Now()
	s := storeOpen(t, db)
	k := newKeyring(s, false)
	token := newSecret(false)
	authDeny(t, k, authHeader(token), now, CodeInvalidKey)
	if n := k.known.size.Load(); n != 0 {
		t.Errorf("%d unknown keys are remembered", n)
	}
	if _, err := insertKey(t.Context(), s, &apiKey{Plan: "free"}, token, false); err != nil {
		t.Fatal(err)
	}
	authAllow(t, k, token, now)
}

func TestAChangeByAnotherProgramIsHonouredAfterOneLook(t *testing.T) {
	engines(t, testAChangeByAnotherProgramIsHonouredAfterOneLook)
}

func testAChangeByAnotherProgramIsHonouredAfterOneLook(t *testing.T, db string) {
	now := time.Now()
	s, other := storeOpen(t, db), storeOpen(t, db)
	k := newKeyring(s, false)
	token := authInsert(t, s, apiKey{})
	change := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.refresh(t.Context()); err != nil { // the service looks four times a second
			t.Fatal(err)
		}
	}
	change(nil)
	if key := authAllow(t, k, token, now); key.quota != plans["free"] || key.unbannedAt != 0 {
		t.Errorf("at first the key is %+v", key)
	}
	_, err := other.edit(t.Context(), setPlan(1, "enterprise", quota{7, 70}))
	change(err)
	if key := authAllow(t, k, token, now); key.quota != (quota{7, 70}) || key.Plan != "enterprise" || key.policy[0] != `"minute";q=7;w=60, "day";q=70;w=86400` {
		t.Errorf("after a change of plan the key is %+v", key)
	}
	change(unbanKey(t.Context(), other, 1, 12345))
	if key := authAllow(t, k, token, now); key.unbannedAt != 12345 {
		t.Errorf("after an unban the key is %+v", key)
	}
	made := authInsert(t, other, apiKey{})
	authAllow(t, k, made, now) // a new key needs no look
	successor, next := apiKey{ID: 1, Plan: "free", account: account{usageID: 1}, CreatedAt: instantOf(now)}, newSecret(false)
	_, err = rotateKey(t.Context(), other, &successor, next, instantOf(now.Add(time.Minute)))
	change(err)
	authAllow(t, k, token, now)
	authAllow(t, k, next, now)
	authDeny(t, k, authHeader(token), now.Add(time.Minute), CodeInvalidKey)
	change(authRevoke(t.Context(), other, 2, instantOf(now)))
	authDeny(t, k, authHeader(made), now, CodeInvalidKey)
}

// A key that is being read while another program writes may have been read
// before or after that, so it must not be remembered.
func TestAKeyReadDuringAForeignChangeIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
		k := newKeyring(s, false)
		first, second := authInsert(t, s, apiKey{}), authInsert(t, s, apiKey{})
		if key, err := k.lookup(newSecret(false), authUnspent); key != nil || err != nil { // prepares the query
			t.Fatal(key, err)
		}
		var busy [readers]*sql.Conn
		for i := range busy {
			var err error
			if busy[i], err = s.engine.(*sqliteFile).reader.Conn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		read := func(token secret) {
			wg.Go(func() {
				if _, err := k.authenticate(authHeader(token), now, authUnspent); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // it is waiting for a connection now
		}
		read(first)
		s.editsSeen.Add(1) // as a commit does when another program has written
		read(second)
		for _, conn := range busy {
			_ = conn.Close()
		}
		wg.Wait()
		_ = s.Close()
		authAllow(t, k, second, now)
		if _, err := k.authenticate(authHeader(first), now, authUnspent); err == nil {
			t.Error("what may be outdated is remembered")
		}
	})
}

// authUsed is when a key is shown to have used the deprecated operation last.
func authUsed(t testing.TB, s *store, id int64) instant {
	t.Helper()
	var used instant
	found, err := s.readInto(t.Context(), sqlOf("SELECT deprecated_use_at FROM api_keys WHERE id = ?", id), &used)
	if err != nil || !found {
		t.Fatalf("key %d is not found: %v", id, err)
	}
	return used
}

func TestDeprecatedUsesAreWrittenOnceAndSurviveARestart(t *testing.T) {
	engines(t, testDeprecatedUsesAreWrittenOnceAndSurviveARestart)
}

func testDeprecatedUsesAreWrittenOnceAndSurviveARestart(t *testing.T, db string) {
	now := time.Now()
	s := storeOpen(t, db)
	first := authAllow(t, newKeyring(s, false), authInsert(t, s, apiKey{}), now)
	authInsert(t, s, apiKey{})
	k := newKeyring(s, false)
	for _, c := range []struct {
		policy string
		do     func()
		want   uint64
	}{
		{"nothing happened", func() {}, 0},
		{"the deprecated operation was used", func() { k.noteDeprecatedUse(first, now) }, 1},
		{"the deprecated operation was not used again", func() {}, 0},
		{"it was used twice", func() { k.noteDeprecatedUse(first, now); k.noteDeprecatedUse(first, now.Add(time.Second)) }, 1},
	} {
		before := s.commits.Load()
		c.do()
		if err := k.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.commits.Load() - before; got != c.want {
			t.Errorf("%s: %d commits, want %d", c.policy, got, c.want)
		}
	}
	_ = s.Close()
	s = storeOpen(t, db)
	if used, other := authUsed(t, s, 1), authUsed(t, s, 2); used != instantOf(now.Add(time.Second)) || other != 0 {
		t.Errorf("the first key is shown with %v, want %v; the other with %d", used.time(), now.Add(time.Second), other)
	}
}

func TestAFailedFlushLosesNoDeprecatedUse(t *testing.T) {
	db := filepath.Join(t.TempDir(), "pets.db")
	now := time.Now()
	s := storeOpen(t, db)
	k := newKeyring(s, false)
	k.noteDeprecatedUse(authAllow(t, k, authInsert(t, s, apiKey{}), now), now)
	conn := s.engine.(*sqliteFile).conn
	if _, err := conn.ExecContext(t.Context(), "PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	if err := k.flush(t.Context()); !errors.Is(err, errUnavailable) {
		t.Fatalf("the flush does not report that it failed: %v", err)
	}
	if _, err := conn.ExecContext(t.Context(), "PRAGMA query_only = 0"); err != nil {
		t.Fatal(err)
	}
	if err := k.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if used := authUsed(t, s, 1); used != instantOf(now) {
		t.Errorf("the deprecated use is shown as %v", used.time())
	}
}

func TestADeprecatedUseDuringAFlushIsWrittenByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
		k := newKeyring(s, false)
		key := authAllow(t, k, authInsert(t, s, apiKey{}), now)
		k.noteDeprecatedUse(key, now)
		limitsDuringFlush(t, s, k.flush, func() { k.noteDeprecatedUse(key, now.Add(time.Second)) })
		if used := authUsed(t, s, 1); used != instantOf(now) {
			t.Errorf("the first flush has written %v", used.time())
		}
		if err := k.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if used := authUsed(t, s, 1); used != instantOf(now.Add(time.Second)) {
			t.Errorf("the next flush has written %v", used.time())
		}
	})
}

func TestSecretsRedactThemselves(t *testing.T) {
	token := secret(authMake("pet_live_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k"))
	var text, asJSON bytes.Buffer
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&text, nil)), slog.New(slog.NewJSONHandler(&asJSON, nil))} {
		log.Info("made", "key", token, "in", struct{ Key secret }{token}, "list", []secret{token})
	}
	encoded, err := json.Marshal(map[string]any{"key": token, "in": struct{ Key secret }{token}, "list": []secret{token}})
	if err != nil {
		t.Fatal(err)
	}
	for how, printed := range map[string]string{
		"%v": fmt.Sprintf("%v", token), "%s": fmt.Sprintf("key %s", token), "%#v": fmt.Sprintf("%#v", token), "%+v": fmt.Sprintf("%+v", token), "%q": fmt.Sprintf("%q", token),
		"in a struct": fmt.Sprintf("%+v", struct{ Key secret }{token}), "in a list": fmt.Sprint([]secret{token}),
		"slog as text": text.String(), "slog as JSON": asJSON.String(), "json.Marshal": string(encoded),
		"in an error": fmt.Errorf("no key %v", token).Error(),
	} {
		if strings.Contains(printed, string(token[9:20])) || !strings.Contains(printed, string(token[43:])) {
			t.Errorf("%s: %s, want no more than the last four characters", how, printed)
		}
	}
	if plain := string(token); len(plain) != 47 {
		t.Errorf("asked for by conversion it is %q", plain)
	}
}

func TestOnlyTheDigestOfAKeyIsInTheDatabase(t *testing.T) {
	k := commandsNew(t)
	open := storeOpen(t, k.db) // keeps the write-ahead log from being folded away
	token := k.mint("create", "-name", "shop")
	next := k.mint("rotate", "1")
	if _, err := newKeyring(open, false).authenticate(authHeader(secret(token)), time.Now(), authUnspent); err != nil {
		t.Fatal(err)
	}
	var stored []byte
	err := filepath.WalkDir(filepath.Dir(k.db), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		stored = append(stored, content...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{token, next} {
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
	good := authMake("pet_live_", "0aZ9bY8cX7dW6eV5fU4gT3hS2iR1jQ0k")
	for _, seed := range []string{
		"", "Bearer", "Bearer ", "Bearer " + good, "bearer   " + good, "Bearer " + good + " ", "Bearer " + good + " " + good,
		"Bearer\t" + good, "Basic " + good, good, "Bearer " + good[1:], "Bearer " + authMake("pet_test_", good[9:41]), "Bearer \x00", "BEARER é",
	} {
		f.Add(seed, "")
		f.Add("Bearer "+good, seed)
	}
	credentials := regexp.MustCompile(`^[Bb][Ee][Aa][Rr][Ee][Rr] +(pet_live_[0-9A-Za-z]{38})$`)
	f.Fuzz(func(t *testing.T, first, second string) {
		token := bearer([]string{first})
		match := credentials.FindStringSubmatch(first)
		want := match != nil && match[1] == authMake("pet_live_", match[1][9:41])
		if got := wellFormed(token, "pet_live_"); got != want || got && token != match[1] {
			t.Errorf("%q: the token is %q, well formed: %v", first, token, got)
		}
		if token := bearer([]string{first, second}); wellFormed(token, "pet_live_") {
			t.Errorf("two headers %q and %q give a key", first, second)
		}
	})
}

func FuzzChecksum(f *testing.F) {
	f.Add([]byte("random"), 0, byte('x'))
	f.Add([]byte{0xff, 0, 62, 61}, 9, byte('_'))
	f.Add([]byte{}, 40, byte(0))
	f.Add([]byte("0123456789"), 46, byte(0x80))
	f.Fuzz(func(t *testing.T, random []byte, where int, change byte) {
		body := make([]byte, 32)
		for i := range body {
			if i < len(random) {
				body[i] = random[i]
			}
			body[i] = authDigits[body[i]%62]
		}
		key := authMake("pet_live_", string(body))
		where = int(uint(where) % uint(len(key)))
		if !wellFormed(key, "pet_live_") {
			t.Errorf("%q is not well formed", key)
		}
		for what, changed := range map[string]string{
			"a character changed": key[:where] + string([]byte{change}) + key[where+1:],
			"a character lost":    key[:where] + key[where+1:],
			"a character added":   key[:where] + string([]byte{change}) + key[where:],
		} {
			if changed != key && wellFormed(changed, "pet_live_") {
				t.Errorf("%s: %q is well formed, as %q is", what, changed, key)
			}
		}
		if made := string(newSecret(change&1 == 1)); made != authMake(made[:9], made[9:41]) {
			t.Errorf("%q was made with another checksum", made)
		}
	})
}

func BenchmarkAuthenticate(b *testing.B) {
	s := storeOpen(b, filepath.Join(b.TempDir(), "pets.db"))
	headers, now := authHeader(authInsert(b, s, apiKey{})), time.Now()
	k := newKeyring(s, false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.authenticate(headers, now, authUnspent); err != nil {
			b.Fatal(err)
		}
	}
}

// These change keys as the commands do.

func setPlan(id int64, plan string, q quota) statement {
	return changeKey(id, 0, plan, "", q, -1)
}

func setName(id int64, name string) statement { return changeKey(id, 0, "", name, quota{}, -1) }

func setLifetime(id int64, now, lifetime instant) statement {
	return changeKey(id, now, "", "", quota{}, lifetime)
}

func authRevoke(ctx context.Context, s *store, id int64, now instant) error {
	_, err := s.edit(ctx, revokeKey(id, now))
	return err
}

func unbanKey(ctx context.Context, s *store, usageID int64, now instant) error {
	_, err := s.edit(ctx, unban(usageID, now))
	return err
}

// TestALookupWaitsForItsTurnOnlyForAWhile, shorter than its response may take.
func TestALookupWaitsForItsTurnOnlyForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyring(nil, false)
		k.turn <- struct{}{} // that of a lookup that hangs
		start := time.Now()
		_, err := k.lookup(newSecret(false), func() bool { return true })
		if !errors.Is(err, errManySuspects) || time.Since(start) != 5*time.Second {
			t.Errorf("after %v the lookup says %v", time.Since(start), err)
		}
		if n := k.suspects.Load(); n != 0 {
			t.Errorf("%d lookups are said to wait", n)
		}
	})
}
