package main

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
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

// The form of a key, told a second time: what issued keys and secret scanners
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
	token := newSecret(k.test)
	if _, err := s.insertKey(&k, token); err != nil {
		t.Fatal(err)
	}
	return token
}

func authHeader(token secret) []string { return []string{"Bearer " + string(token)} }

func authAllow(t testing.TB, k *keyring, token secret, now time.Time) *apiKey {
	t.Helper()
	key, err := k.authenticate(authHeader(token), now)
	if err != nil {
		t.Fatalf("the key is refused: %v", err)
	}
	return key
}

// authDeny demands an *Error with the code, and no key.
func authDeny(t testing.TB, k *keyring, headers []string, now time.Time, code ErrorCode) Error {
	t.Helper()
	key, err := k.authenticate(headers, now)
	var told *Error
	if key != nil || !errors.As(err, &told) || told.Code != code || told.Status != 401 {
		t.Fatalf("%q: %v, %v, want %s", headers, key, err, code)
	}
	return *told
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

func TestAuthenticate(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
	good := authInsert(t, s, apiKey{Name: "shop", Plan: "pro", CreatedAt: at(now)})
	expiring := authInsert(t, s, apiKey{CreatedAt: at(now), lifetime: 3_600_000})
	expired := authInsert(t, s, apiKey{CreatedAt: at(now.Add(-time.Hour)), lifetime: 3_600_000})
	revoked := authInsert(t, s, apiKey{})
	if err := s.revokeKey(4, at(now)); err != nil {
		t.Fatal(err)
	}
	test := authInsert(t, s, apiKey{test: true})
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
		if _, err := live.authenticate([]string{header}, now); err != nil {
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
		{"a test key in production", live, authHeader(test), now, CodeInvalidKey},
		{"a live key in staging", staging, authHeader(good), now, CodeInvalidKey},
		{"two tokens", live, []string{"Bearer " + string(good) + " " + string(good)}, now, CodeInvalidKey},
		{"two headers with the same key", live, append(authHeader(good), authHeader(good)...), now, CodeInvalidKey},
		{"two headers, the second with a key", live, append(authHeader(newSecret(false)), authHeader(good)...), now, CodeInvalidKey},
		{"two headers, the first with a key", live, append(authHeader(good), "Basic abc"), now, CodeInvalidKey},
	} {
		t.Run(c.policy, func(t *testing.T) {
			told := authDeny(t, c.ring, c.headers, c.now, c.code)
			if c.code == CodeInvalidKey && told != *newError(CodeInvalidKey, "the API key is not valid") {
				t.Errorf("unusable keys look different from outside: %+v", told)
			}
		})
	}
}

func TestAMistypedKeyDoesNotTouchTheDatabase(t *testing.T) {
	now := time.Now()
	s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
	k := newKeyring(s, false)
	_ = s.Close()
	key := string(newSecret(false))
	last := "0"
	if strings.HasSuffix(key, last) {
		last = "1"
	}
	authDeny(t, k, []string{"Bearer " + key[:len(key)-1] + last}, now, CodeInvalidKey)
	authDeny(t, k, authHeader(newSecret(true)), now, CodeInvalidKey)

	var told *Error
	if _, err := k.authenticate([]string{"Bearer " + key}, now); err == nil || errors.As(err, &told) {
		t.Errorf("a key that has to be looked up: %v, want the store's error, which is nobody's fault", err)
	}
}

func TestAKnownKeyIsAnsweredWithoutTheDatabase(t *testing.T) {
	now := time.Now()
	s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
	k := newKeyring(s, false)
	var tokens []secret
	for range 3 {
		token := authInsert(t, s, apiKey{CreatedAt: at(now), lifetime: 3_600_000})
		authAllow(t, k, token, now)
		tokens = append(tokens, token)
	}
	_ = s.Close()
	for _, token := range tokens {
		authAllow(t, k, token, now)
		authDeny(t, k, authHeader(token), now.Add(time.Hour), CodeInvalidKey) // and expires all the same
	}
}

func TestUnknownKeysAreNotRemembered(t *testing.T) {
	now := time.Now()
	s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
	k := newKeyring(s, false)
	token := newSecret(false)
	authDeny(t, k, authHeader(token), now, CodeInvalidKey)
	if n := len(k.known.young) + len(k.known.old); n != 0 {
		t.Errorf("%d unknown keys are remembered", n)
	}
	if _, err := s.insertKey(&apiKey{Plan: "free"}, token); err != nil {
		t.Fatal(err)
	}
	authAllow(t, k, token, now)
}

func TestAChangeByAnotherProcessIsHonouredAfterOneLook(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "pets.db")
	s, other := storeOpen(t, path), storeOpen(t, path)
	k := newKeyring(s, false)
	token := authInsert(t, s, apiKey{})
	change := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.commit(); err != nil { // the service looks four times a second
			t.Fatal(err)
		}
	}
	change(nil)
	if key := authAllow(t, k, token, now); key.quota != plans["free"] || key.unbannedAt != 0 {
		t.Errorf("at first the key is %+v", key)
	}
	change(other.setPlan(1, "enterprise", quota{7, 70}))
	if key := authAllow(t, k, token, now); key.quota != (quota{7, 70}) || key.Plan != "enterprise" || key.policy[0] != `"minute";q=7;w=60, "day";q=70;w=86400` {
		t.Errorf("after a change of plan the key is %+v", key)
	}
	change(other.unbanKey(1, 12345))
	if key := authAllow(t, k, token, now); key.unbannedAt != 12345 {
		t.Errorf("after an unban the key is %+v", key)
	}
	made := authInsert(t, other, apiKey{})
	authAllow(t, k, made, now) // a new key needs no look
	successor, next := apiKey{ID: 1, Plan: "free", usageID: 1, CreatedAt: at(now)}, newSecret(false)
	_, err := other.rotateKey(&successor, next, at(now.Add(time.Minute)))
	change(err)
	authAllow(t, k, token, now)
	authAllow(t, k, next, now)
	authDeny(t, k, authHeader(token), now.Add(time.Minute), CodeInvalidKey)
	change(other.revokeKey(2, at(now)))
	authDeny(t, k, authHeader(made), now, CodeInvalidKey)
}

// A key that is being read while another process writes may have been read
// before or after that, so it must not be remembered.
func TestAKeyReadDuringAForeignChangeIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		s := storeOpen(t, filepath.Join(t.TempDir(), "pets.db"))
		k := newKeyring(s, false)
		first, second := authInsert(t, s, apiKey{}), authInsert(t, s, apiKey{})
		var busy [readers]*sql.Conn
		for i := range busy {
			var err error
			if busy[i], err = s.reader.Conn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		read := func(token secret) {
			wg.Go(func() {
				if _, err := k.authenticate(authHeader(token), now); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // it is waiting for a connection now
		}
		read(first)
		s.foreign.Add(1) // as look does for a change by another process
		read(second)
		for _, conn := range busy {
			_ = conn.Close()
		}
		wg.Wait()
		_ = s.Close()
		authAllow(t, k, second, now)
		if _, err := k.authenticate(authHeader(first), now); err == nil {
			t.Error("what may be outdated is remembered")
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
	if whole := string(token); len(whole) != 47 {
		t.Errorf("asked for by conversion it is %q", whole)
	}
}

// authRun runs a command line of petstore with an environment.
func authRun(t testing.TB, environ map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	err = run(t.Context(), args, func(name string) string { return environ[name] }, &out, &log)
	if err != nil && strings.ContainsRune(err.Error(), '\n') {
		t.Errorf("%v: the reason is more than a line: %v", args, err)
	}
	return out.String(), log.String(), err
}

// authKeys runs petstore key on one database.
type authKeys struct {
	testing.TB
	db string
}

// authNew is a database without a key, and without a file yet.
func authNew(t testing.TB) authKeys { return authKeys{t, filepath.Join(t.TempDir(), "pets.db")} }

// do runs "key VERB", which must succeed, and returns what it printed.
func (k authKeys) do(verb string, args ...string) string {
	k.Helper()
	out, log, err := authRun(k, nil, append([]string{"key", verb, "-db", k.db}, args...)...)
	if err != nil {
		k.Fatalf("key %s %v: %v", verb, args, err)
	}
	if strings.Contains(log, "pet_live_") || strings.Contains(log, "pet_test_") {
		k.Errorf("key %s %v logs a key: %s", verb, args, log)
	}
	return out
}

// mint runs a verb that must print a bare key alone, and returns it.
func (k authKeys) mint(verb string, args ...string) string {
	k.Helper()
	out := k.do(verb, args...)
	token, isLine := strings.CutSuffix(out, "\n")
	if !isLine || !authForm.MatchString(token) {
		k.Fatalf("key %s %v prints %q, want a bare key on a line", verb, args, out)
	}
	return token
}

// authShown is what show -json prints of a key.
type authShown struct {
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
}

func (k authKeys) show(id string) (shown authShown) {
	k.Helper()
	if err := json.Unmarshal([]byte(k.do("show", "-json", id)), &shown); err != nil {
		k.Fatal(err)
	}
	return shown
}

// write runs statements on the database, as the service does.
func (k authKeys) write(statements ...statement) {
	k.Helper()
	s := storeOpen(k, k.db)
	defer s.Close()
	if _, err := s.commit(statements...); err != nil {
		k.Fatal(err)
	}
}

// authTime reads a time that may be null.
func authTime(text *string) string {
	if text == nil {
		return "null"
	}
	return *text
}

// In these tests it is midnight on 1 January 2000 UTC, when synctest's clock begins.
func TestKeyCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		for _, c := range []struct {
			args      []string
			prefix    string
			plan      string
			perMinute int64
			perDay    int64
			expires   string
		}{
			{nil, "pet_live_", "free", 60, 1_000, "null"},
			{[]string{"-plan", "free"}, "pet_live_", "free", 60, 1_000, "null"},
			{[]string{"-plan", "pro"}, "pet_live_", "pro", 300, 10_000, "null"},
			{[]string{"-plan", "business", "-test"}, "pet_test_", "business", 1_000, 100_000, "null"},
			{[]string{"-plan", "enterprise", "-per-minute", "1", "-per-day", "2"}, "pet_live_", "enterprise", 1, 2, "null"},
			{[]string{"-expires", "2160h"}, "pet_live_", "free", 60, 1_000, "2000-03-31T00:00:00Z"},
		} {
			token := k.mint("create", append([]string{"-name", "shop front"}, c.args...)...)
			var keys []authShown
			if err := json.Unmarshal([]byte(k.do("list", "-json")), &keys); err != nil {
				t.Fatal(err)
			}
			shown := keys[len(keys)-1]
			want := authShown{ID: int64(len(keys)), Name: "shop front", Plan: c.plan, LastFour: token[43:], CreatedAt: "2000-01-01T00:00:00Z",
				ExpiresAt: shown.ExpiresAt, PerMinute: c.perMinute, PerDay: c.perDay}
			if shown != want || authTime(shown.ExpiresAt) != c.expires || !strings.HasPrefix(token, c.prefix) {
				t.Errorf("create %v gave %s… and %+v, expires %s", c.args, token[:9], shown, authTime(shown.ExpiresAt))
			}
		}
	})
}

func TestKeyCreateSaysOnStderrWhatItMade(t *testing.T) {
	k := authNew(t)
	out, log, err := authRun(t, nil, "key", "create", "-db", k.db, "-name", "shop front")
	if err != nil || !strings.Contains(log, "shop front") || strings.Contains(log, strings.TrimSpace(out)) {
		t.Errorf("stderr says %q, %v", log, err)
	}
}

func TestAKeyOfTheOtherEnvironmentIsRemarkedOn(t *testing.T) {
	k := authNew(t)
	for i, c := range []struct {
		flag   string
		remark bool
	}{{"-test=true", false}, {"-test=true", false}, {"-test=false", true}, {"-test=false", false}, {"-test=true", false}} {
		_, log, err := authRun(t, nil, "key", "create", "-db", k.db, c.flag)
		if err != nil || strings.Contains(log, "all other keys") != c.remark {
			t.Errorf("key %d, %s: %v, stderr %q", i+1, c.flag, err, log)
		}
	}
}

func TestEveryChangeOfAKeyIsLogged(t *testing.T) {
	k := authNew(t)
	k.mint("create")
	for _, c := range []struct{ args, want string }{
		{"set -plan pro 1", `"msg":"key changed","id":1,"plan":"pro","perMinute":300,"perDay":10000}`},
		{"unban 1", `"msg":"key unbanned","id":1}`},
		{"rotate -overlap 1h 1", `"msg":"key rotated","id":1,"successor":2,"overlap":3600000000000}`},
		{"revoke 1", `"msg":"key revoked","id":1}`},
	} {
		_, log, err := authRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, strings.Fields(c.args)...)...)
		if err != nil || strings.Count(log, "\n") != 1 || !strings.Contains(log, c.want) {
			t.Errorf("key %s says %v, %q; want a line with %s", c.args, err, log, c.want)
		}
	}
}

func TestTheLeastLimitsAndTheShortestLifeAreTaken(t *testing.T) {
	k := authNew(t)
	k.mint("create", "-plan", "enterprise", "-per-minute", "1", "-per-day", "1", "-expires", "1s")
	if got := k.show("1"); got.PerMinute != 1 || got.PerDay != 1 || got.ExpiresAt == nil {
		t.Errorf("the key is %+v", got)
	}
}

func TestOnlyTheDigestOfAKeyIsInTheDatabase(t *testing.T) {
	k := authNew(t)
	open := storeOpen(t, k.db) // keeps the write-ahead log from being folded away
	token := k.mint("create", "-name", "shop")
	next := k.mint("rotate", "1")
	if _, err := newKeyring(open, false).authenticate(authHeader(secret(token)), time.Now()); err != nil {
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

func TestKeyShowAndListAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create", "-name", "<shop> & front", "-plan", "pro")
		k.mint("create", "-expires", "48h")
		now := at(time.Now())
		k.write(
			saveUsage(1, &usage{minute: bucket{7, now + 1000}, day: bucket{70, now + 2000}, bannedAt: now, bannedUntil: now + 600_500}),
			saveUsage(2, &usage{minute: bucket{8, now}, day: bucket{80, now}, bannedAt: now - 9, bannedUntil: now}),
			saveDeprecatedUse(1, now-1),
		)
		k.do("revoke", "2")
		first := map[string]any{
			"id": 1.0, "name": "<shop> & front", "plan": "pro", "createdAt": "2000-01-01T00:00:00Z", "expiresAt": nil, "revokedAt": nil,
			"perMinute": 300.0, "perDay": 10_000.0, "usedThisMinute": 7.0, "usedToday": 70.0,
			"bannedUntil": "2000-01-01T00:10:00.5Z", "deprecatedUseAt": "1999-12-31T23:59:59.999Z",
		}
		second := map[string]any{ // its windows and its ban are over
			"id": 2.0, "name": "", "plan": "free", "createdAt": "2000-01-01T00:00:00Z", "expiresAt": "2000-01-03T00:00:00Z",
			"revokedAt": "2000-01-01T00:00:00Z", "perMinute": 60.0, "perDay": 1_000.0, "usedThisMinute": 0.0, "usedToday": 0.0,
			"bannedUntil": nil, "deprecatedUseAt": nil,
		}
		check := func(how string, got, want map[string]any) {
			t.Helper()
			lastFour, ok := got["lastFour"].(string)
			if !ok || len(lastFour) != 4 {
				t.Errorf("%s: lastFour is %v", how, got["lastFour"])
			}
			delete(got, "lastFour")
			if !maps.Equal(got, want) {
				t.Errorf("%s\n got %v\nwant %v", how, got, want)
			}
		}
		var shown map[string]any
		if err := json.Unmarshal([]byte(k.do("show", "-json", "1")), &shown); err != nil {
			t.Fatal(err)
		}
		check("show", shown, first)
		var list []map[string]any
		if err := json.Unmarshal([]byte(k.do("list", "-json")), &list); err != nil || len(list) != 2 {
			t.Fatalf("list: %v, %v", list, err)
		}
		check("list, first", list[0], first)
		check("list, second", list[1], second)
	})
}

func TestAListWithoutKeysIsAnEmptyArray(t *testing.T) {
	k := authNew(t)
	storeOpen(t, k.db)
	if out := k.do("list", "-json"); out != "[]\n" {
		t.Errorf("it prints %q", out)
	}
	if out := k.do("list"); strings.Count(out, "\n") != 1 {
		t.Errorf("the table is %q, want its heading", out)
	}
}

func TestKeyTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		var tokens []string
		for _, args := range [][]string{{"-name", "active"}, {"-name", "revoked"}, {"-name", "expired", "-expires", "1h"}, {"-name", "banned", "-plan", "pro"}, {"-name", "ending", "-expires", "48h"},
			{"-name", "busy", "-test", "-expires", "361h"}, {"-name", "out"}} {
			tokens = append(tokens, k.mint("create", args...))
		}
		k.do("revoke", "2")
		time.Sleep(time.Hour)
		now := at(time.Now())
		k.write(
			saveUsage(1, &usage{minute: bucket{5, now + 1}, day: bucket{799, now + 1}}),
			saveUsage(6, &usage{minute: bucket{70, now + 1}, day: bucket{800, now + 1}}),
			saveUsage(4, &usage{bannedAt: now, bannedUntil: now + 600_000}),
			saveUsage(7, &usage{bannedAt: now, bannedUntil: now + 2*dayMillis}),
			saveDeprecatedUse(1, now),
		)
		table := k.do("list")
		lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
		if len(lines) != 8 {
			t.Fatalf("the table is\n%s", table)
		}
		for i, want := range []string{
			"1 live %s free 5/60 799/1000 active; getPet 2000-01-01 active",
			"2 live %s free 0/60 0/1000 revoked revoked",
			"3 live %s free 0/60 0/1000 expired expired",
			"4 live %s pro 0/300 0/10000 banned to 01:10:00Z banned",
			"5 live %s free 0/60 0/1000 active; ends soon, 2000-01-03 ending",
			"6 test %s free 70/60 800/1000 active; ends 2000-01-16; minute 100 %%; day 80 %% busy",
			"7 live %s free 0/60 0/1000 banned to 2000-01-03 01:00:00Z out",
		} {
			want = fmt.Sprintf(want, tokens[i][43:])
			if got := strings.Join(strings.Fields(lines[i+1]), " "); got != want {
				t.Errorf("row %d is %q, want %q", i+1, got, want)
			}
			one := k.do("show", fmt.Sprint(i+1))
			if strings.Count(one, "\n") != 2 || strings.Join(strings.Fields(one), " ") != strings.Join(strings.Fields(lines[0]), " ")+" "+want {
				t.Errorf("show %d prints\n%s", i+1, one)
			}
			for line := range strings.Lines(one) {
				if i != 5 && len(line) > 81 {
					t.Errorf("show %d is wider than a terminal: %q", i+1, line)
				}
			}
		}
	})
}

func TestKeySet(t *testing.T) {
	k := authNew(t)
	k.mint("create", "-name", "shop")
	k.mint("create", "-name", "other", "-plan", "pro")
	for _, c := range []struct {
		args              []string
		plan              string
		perMinute, perDay int64
	}{
		{[]string{"-plan", "business"}, "business", 1_000, 100_000},
		{[]string{"-plan", "enterprise", "-per-minute", "5", "-per-day", "6"}, "enterprise", 5, 6},
		{[]string{"-plan", "free"}, "free", 60, 1_000},
	} {
		if out := k.do("set", append(c.args, "1")...); out != "" {
			t.Errorf("set %v prints %q on stdout", c.args, out)
		}
		if got := k.show("1"); got.Plan != c.plan || got.PerMinute != c.perMinute || got.PerDay != c.perDay || got.Name != "shop" {
			t.Errorf("after set %v the key is %+v", c.args, got)
		}
		if got := k.show("2"); got.Plan != "pro" {
			t.Errorf("set %v has changed the other key: %+v", c.args, got)
		}
	}
}

func TestKeyRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create", "-name", "shop", "-plan", "enterprise", "-per-minute", "5", "-per-day", "50")
		now := at(time.Now())
		k.write(saveUsage(1, &usage{minute: bucket{3, now + minuteMillis}, day: bucket{30, now + dayMillis}}))
		time.Sleep(time.Second)
		next := k.mint("rotate", "1")
		if got := k.show("1"); authTime(got.ExpiresAt) != "2000-01-02T00:00:01Z" || got.RevokedAt != nil {
			t.Errorf("the old key lives until %s, want a day's overlap", authTime(got.ExpiresAt))
		}
		want := authShown{ID: 2, Name: "shop", Plan: "enterprise", LastFour: next[43:], CreatedAt: "2000-01-01T00:00:01Z",
			PerMinute: 5, PerDay: 50, UsedThisMinute: 3, UsedToday: 30}
		if got := k.show("2"); got != want {
			t.Errorf("the successor is %+v, want the same plan, limits and usage", got)
		}
		k.mint("rotate", "-overlap", "1h", "2")
		if old, got := k.show("2"), k.show("3"); authTime(old.ExpiresAt) != "2000-01-01T01:00:01Z" || got.UsedToday != 30 {
			t.Errorf("rotated again: the old key lives until %s, its successor has used %d today", authTime(old.ExpiresAt), got.UsedToday)
		}
		k.mint("rotate", "-overlap", "0s", "3")
		if old := k.show("3"); authTime(old.ExpiresAt) != "2000-01-01T00:00:01Z" {
			t.Errorf("without an overlap the old key lives until %s", authTime(old.ExpiresAt))
		}
		k.write(saveUsage(1, &usage{day: bucket{31, now + dayMillis}}))
		for _, id := range []string{"1", "2", "3", "4"} {
			if got := k.show(id); got.UsedToday != 31 {
				t.Errorf("key %s has used %d today; one line has one usage", id, got.UsedToday)
			}
		}
	})
}

func TestKeyRotateKeepsTestKeysTestKeys(t *testing.T) {
	k := authNew(t)
	k.mint("create", "-test")
	if next := k.mint("rotate", "1"); !strings.HasPrefix(next, "pet_test_") {
		t.Errorf("the successor of a test key is a %s key", next[:9])
	}
}

func TestRotatingAgainInsideTheOverlapDoesNotShortenTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create")
		k.mint("create", "-expires", "48h")
		for _, id := range []string{"1", "2", "1", "2"} { // the output of the first was lost, say
			k.mint("rotate", "-overlap", "1h", id)
		}
		for id, want := range map[string]string{"3": "null", "4": "2000-01-03T00:00:00Z", "5": "null", "6": "2000-01-03T00:00:00Z"} {
			if got := authTime(k.show(id).ExpiresAt); got != want {
				t.Errorf("the successor %s lives until %s, want %s", id, got, want)
			}
		}
	})
}

func TestAnOverlapNeverExtendsAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create", "-expires", "48h")
		time.Sleep(36 * time.Hour)
		k.mint("rotate", "-overlap", "240h", "1")
		if got := authTime(k.show("1").ExpiresAt); got != "2000-01-03T00:00:00Z" {
			t.Errorf("the old key lives until %s", got)
		}
		if got := authTime(k.show("2").ExpiresAt); got != "2000-01-04T12:00:00Z" {
			t.Errorf("the successor lives until %s, want as long as its predecessor was made for", got)
		}
	})
}

func TestAKeyThatHasEndedCannotBeRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create", "-expires", "1h")
		k.mint("create")
		k.do("revoke", "2")
		time.Sleep(time.Hour)
		for _, id := range []string{"1", "2"} {
			before := k.show(id)
			out, _, err := authRun(t, nil, "key", "rotate", "-db", k.db, id)
			var misuse *usageError
			if err == nil || errors.As(err, &misuse) || out != "" {
				t.Errorf("rotate %s: %q, %v, want a plain error", id, out, err)
			}
			if got := k.show(id); authTime(got.ExpiresAt) != authTime(before.ExpiresAt) {
				t.Errorf("rotate %s: the key now ends at %s", id, authTime(got.ExpiresAt))
			}
		}
		if lines := strings.Count(k.do("list"), "\n"); lines != 3 {
			t.Errorf("a successor was made after all: the list has %d lines", lines)
		}
	})
}

func TestKeyRevokeIsForGoodAndKeepsItsFirstTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create")
		k.mint("create")
		for range 2 {
			if out := k.do("revoke", "1"); out != "" {
				t.Errorf("revoke prints %q on stdout", out)
			}
			if got := authTime(k.show("1").RevokedAt); got != "2000-01-01T00:00:00Z" {
				t.Errorf("revoked at %s", got)
			}
			time.Sleep(time.Hour)
		}
		if got := k.show("2"); got.RevokedAt != nil {
			t.Errorf("the other key is revoked too: %+v", got)
		}
	})
}

func TestKeyUnban(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := authNew(t)
		k.mint("create")
		k.mint("rotate", "1")
		k.mint("create")
		ban := func(id int64) {
			now := at(time.Now())
			k.write(saveUsage(id, &usage{bannedAt: now, bannedUntil: now + 600_000}))
		}
		ban(1)
		ban(3)
		time.Sleep(time.Minute)
		for _, id := range []string{"1", "2", "3"} {
			if got := authTime(k.show(id).BannedUntil); got != "2000-01-01T00:10:00Z" {
				t.Errorf("key %s is shown as banned until %s", id, got)
			}
		}
		if out := k.do("unban", "1"); out != "" {
			t.Errorf("unban prints %q on stdout", out)
		}
		for id, want := range map[string]string{"1": "null", "2": "null", "3": "2000-01-01T00:10:00Z"} {
			if got := authTime(k.show(id).BannedUntil); got != want {
				t.Errorf("after the unban key %s is shown as banned until %s, want %s", id, got, want)
			}
		}
		time.Sleep(time.Minute)
		ban(1)
		if got := authTime(k.show("1").BannedUntil); got != "2000-01-01T00:12:00Z" {
			t.Errorf("a later ban is shown as %s", got)
		}
	})
}

func TestAnUnknownIDIsAnErrorButNoMisuse(t *testing.T) {
	k := authNew(t)
	k.mint("create")
	for _, line := range []string{
		"show 2", "show -json 2", "set -plan pro 2", "rotate 2", "revoke 2", "unban 2",
		"show abc", "show 0", "show 1.0", "show 99999999999999999999", "revoke 0",
	} {
		args := strings.Fields(line)
		out, log, err := authRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, args...)...)
		var misuse *usageError
		if err == nil || errors.As(err, &misuse) || !strings.Contains(err.Error(), args[len(args)-1]) || out != "" || log != "" {
			t.Errorf("key %s: %q, %v, want an error that names the id", line, out, err)
		}
	}
}

func TestMisuseOfKeyCommands(t *testing.T) {
	k := authNew(t)
	k.mint("create", "-name", "shop")
	before := k.do("list", "-json")
	for _, line := range []string{
		"", "frobnicate", "-json", "Create",
		"create extra", "create two more",
		"create -plan gold", "create -plan Free", "create -plan=",
		"create -plan enterprise", "create -plan enterprise -per-minute 5", "create -plan enterprise -per-day 5",
		"create -plan enterprise -per-minute 0 -per-day 5", "create -plan enterprise -per-minute 5 -per-day -1",
		"create -plan pro -per-minute 5", "create -plan pro -per-day 5", "create -per-minute 5 -per-day 5",
		"create -expires -1h", "create -expires soon", "create -per-minute x", "create -name \x07", "create -unknown",
		"list 1", "list 1 2", "list -plan pro",
		"show", "show 1 2", "show 1 -json",
		"set 1", "set -plan gold 1", "set -plan pro", "set -plan enterprise 1", "set -plan free -per-day 9 1", "set -plan pro -name x 1",
		"rotate", "rotate -overlap -1h 1", "rotate -overlap x 1", "rotate 1 -overlap 1h",
		"revoke", "revoke 1 1", "unban", "unban -json 1",
	} {
		args := append([]string{"key"}, strings.Fields(line)...)
		if strings.HasSuffix(line, "\x07") {
			args[len(args)-1] = "\x07"
		}
		out, _, err := authRun(t, map[string]string{"PETSTORE_DB": k.db}, args...)
		var misuse *usageError
		if !errors.As(err, &misuse) || out != "" {
			t.Errorf("key %s: %q, %v, want a *usageError", line, out, err)
		}
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("misuse has changed the keys to %s", after)
	}
}

func TestTheEnvironmentTwinsOfKeyCommands(t *testing.T) {
	k, other := authNew(t), authNew(t)
	environ := map[string]string{"PETSTORE_DB": k.db, "PETSTORE_PLAN": "business"}
	if _, _, err := authRun(t, environ, "key", "create"); err != nil {
		t.Fatal(err)
	}
	if got := k.show("1"); got.Plan != "business" {
		t.Errorf("PETSTORE_DB and PETSTORE_PLAN gave %+v", got)
	}
	if _, _, err := authRun(t, environ, "key", "create", "-db", other.db, "-plan", "pro"); err != nil {
		t.Fatal(err)
	}
	if got := other.show("1"); got.Plan != "pro" {
		t.Errorf("the flags should win, but gave %+v", got)
	}
	environ["PETSTORE_PER_DAY"] = "many"
	var misuse *usageError
	if _, _, err := authRun(t, environ, "key", "create"); !errors.As(err, &misuse) || !strings.Contains(err.Error(), "PETSTORE_PER_DAY") {
		t.Errorf("a bad value in the environment: %v", err)
	}
}

func TestKeyCommandsOtherThanCreateMakeNoDatabase(t *testing.T) {
	k := authNew(t)
	for _, line := range []string{"list", "show 1", "set -plan pro 1", "rotate 1", "revoke 1", "unban 1"} {
		_, _, err := authRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, strings.Fields(line)...)...)
		var misuse *usageError
		if err == nil || errors.As(err, &misuse) || !strings.Contains(err.Error(), k.db) {
			t.Errorf("key %s: %v, want an error that names the file", line, err)
		}
	}
	if _, err := os.Stat(k.db); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
	k.mint("create")
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
		if _, err := k.authenticate(headers, now); err != nil {
			b.Fatal(err)
		}
	}
}
