package main

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
func keyWith(prefix, body string) string {
	return prefix + body + keyChecksum(prefix+body)
}

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
		wantEqual(t, key[41:], keyChecksum(key[:41]), "the test's own checksum of ", key)
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
	wantEqual(t, len(seen), keys, "the number of different keys")
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

// TestAuthenticate: what is refused looks alike from outside. Only what has the prefix of the other
// environment, be there such a key or not, is told which one the service takes.
func TestAuthenticate(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		now, made := testTime, instantOf(testTime)
		s := openDatabase(t, db)
		const hour = instant(3_600_000)
		good := mustInsertKey(t, s, apiKey{Name: "shop", Plan: "pro", CreatedAt: made})
		expiring := mustInsertKey(t, s, apiKey{CreatedAt: made, lifetime: hour})
		expired := mustInsertKey(t, s, apiKey{CreatedAt: made - hour, lifetime: hour})
		revoked := mustInsertKey(t, s, apiKey{})
		must(t, revokeNow(t.Context(), s, 4, made))
		test := mustInsertKey(t, s, apiKey{Test: true})
		production, staging := newKeyring(s, false), newKeyring(s, true)
		for range 2 { // also when the key is remembered
			key := mustAuthenticate(t, production, good, now)
			policy := []string{`"minute";q=300;w=60, "day";q=10000;w=86400`}
			if key.ID != 1 || key.Name != "shop" || key.quota != planQuota("pro") ||
				key.usageID != 1 || !slices.Equal(key.policy, policy) {
				t.Errorf("the key is %+v", key)
			}
			mustAuthenticate(t, production, expiring, now.Add(time.Hour-time.Millisecond))
			mustAuthenticate(t, staging, test, now)
		}
		const unknown = "the API key is not valid"
		refuse := func(k *keyring, message string, tokens map[string]secret) {
			t.Helper()
			for policy, token := range tokens {
				reported := mustRefuseKey(t, k, bearerHeader(token), now, CodeInvalidKey)
				if !strings.HasSuffix(reported.Message, message) {
					t.Errorf("%s is told %q, want %q", policy, reported.Message, message)
				}
			}
		}
		refuse(production, unknown, map[string]secret{
			"a mistyped key":                        good[:46] + "-",
			"an unknown key":                        newSecret(false),
			"an expired key, at the very instant":   expired,
			"a revoked key":                         revoked,
			"a prefix that is cut off":              "pet_test",
			"another prefix":                        "PET_TEST_" + test[9:],
			"a prefix that something stands before": "x" + test,
		})
		refuse(production, "begin with pet_live_", map[string]secret{
			"a test key":               test,
			"one that nobody has made": newSecret(true),
			"nothing but the prefix":   "pet_test_",
		})
		refuse(staging, "begin with pet_test_", map[string]secret{"a live key": good})
		// Two headers are an invalid key, whatever they hold.
		held := []string{"", "Bearer", "Basic dXNlcjpwYXNz", string(good), "Bearer nonsense"}
		held = slices.Concat(held, bearerHeader(good), bearerHeader(test))
		for _, first := range held {
			for _, second := range held {
				twice := []string{first, second}
				reported := mustRefuseKey(t, production, twice, now, CodeInvalidKey)
				wantEqual(t, reported.Message, unknown, "what two headers are told")
			}
		}
		mustRefuseKey(t, production, nil, now, CodeMissingKey)
		now = now.Add(time.Hour)
		refuse(production, unknown, map[string]secret{"a key that has expired meanwhile": expiring})
	})
}

func TestAMistypedKeyDoesNotTouchTheDatabase(t *testing.T) {
	s := newStore(t)
	k := newKeyring(s, false)
	_ = s.Close()
	key := newSecret(false)
	mistyped := key[:46] + "-"
	mustRefuseKey(t, k, bearerHeader(mistyped), testTime, CodeInvalidKey)
	mustRefuseKey(t, k, bearerHeader(newSecret(true)), testTime, CodeInvalidKey)
	_, err := k.authenticate(bearerHeader(key), testTime, addressUnspent)
	if _, reported := errors.AsType[*Error](err); err == nil || reported {
		t.Errorf("a key that has to be looked up: %v, want the store's error", err)
	}
}

// TestAKeyThatCannotBeReadOpensNothing: its row is damaged before the column that says that it was
// revoked.
func TestAKeyThatCannotBeReadOpensNothing(t *testing.T) {
	s := newStore(t)
	token := mustInsertKey(t, s, apiKey{})
	mustWrite(t, s, sqlOf("UPDATE api_keys SET test = 2, revoked_at = 1"))
	key, err := newKeyring(s, false).authenticate(bearerHeader(token), testTime, addressUnspent)
	if _, reported := errors.AsType[*Error](err); key != nil || err == nil || reported {
		t.Errorf("the key is %+v, %v; want the store's error", key, err)
	}
}

func TestTheNewestKeyOfALineStandsForItsUsage(t *testing.T) {
	s := newStore(t)
	k := newKeyring(s, false)
	mustAuthenticate(t, k, mustInsertKey(t, s, apiKey{}), testTime)
	successor := apiKey{Succeeds: 1, account: account{usageID: 1}}
	mustAuthenticate(t, k, mustInsertKey(t, s, successor), testTime)
	wantEqual(t, k.newest()[1].ID, 2, "the newest key")
}

func TestUnknownKeysAreNotRemembered(t *testing.T) {
	s := newStore(t)
	k := newKeyring(s, false)
	token := newSecret(false)
	mustRefuseKey(t, k, bearerHeader(token), testTime, CodeInvalidKey)
	wantEqual(t, k.known.size, 0, "the number of keys that are remembered")
	_, err := insertKey(t.Context(), s, &apiKey{Plan: freePlan}, token.digest(), "true")
	must(t, err)
	mustAuthenticate(t, k, token, testTime)
}

func TestAChangeByAnotherProgramIsHonouredAfterOneLook(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s, other := openDatabase(t, db), openDatabase(t, db)
		ring, k := newKeyring(s, false), testKeys{t, db}
		now := time.Now()
		later := now.Add(2 * time.Hour)
		const free = `free {60 1000} ["minute";q=60;w=60, "day";q=1000;w=86400]`
		const changed = `enterprise {7 70} ["minute";q=7;w=60, "day";q=70;w=86400]`
		token := secret(k.mint("create"))
		// after is the key once something was done and the service has looked for changes.
		after := func(story, want string) *apiKey {
			t.Helper()
			k.story(story)
			must(t, s.refresh(t.Context())) // the service looks four times a second
			key := mustAuthenticate(t, ring, token, now)
			wantEqual(t, fmt.Sprint(key.Plan, " ", key.quota, " ", key.policy),
				want, "the key after ", story)
			return key
		}
		after("", free)
		after("set -plan enterprise -per-minute 7 -per-day 70 1", changed)
		must(t, unbanKey(t.Context(), other, 1, 12345))
		wantEqual(t, after("", changed).unbannedAt, 12345, "the time of the unban")
		added := secret(k.mint("create"))
		mustAuthenticate(t, ring, added, now) // a new key needs no look
		next := secret(k.mint("rotate", "-overlap", "1h", "1"))
		after("", changed)
		mustAuthenticate(t, ring, next, now)
		mustRefuseKey(t, ring, bearerHeader(token), later, CodeInvalidKey)
		must(t, takeBack(t.Context(), other, next.digest()))
		after("set -expires 0 1", changed)
		mustAuthenticate(t, ring, token, later)
		mustRefuseKey(t, ring, bearerHeader(next), now, CodeInvalidKey)
		after("revoke 2", changed)
		mustRefuseKey(t, ring, bearerHeader(added), now, CodeInvalidKey)
	})
}

// TestAKeyThatHasChangedIsNotRotated, be it revoked after a command had looked, be it given another
// expiry, which would be lost when its successor is taken back, or another plan or limit, which the
// successor would not have.
func TestAKeyThatHasChangedIsNotRotated(t *testing.T) {
	s := newStore(t)
	made := instantOf(testTime)
	for i, change := range []statement{revokeKey(1, made), changeExpiry(2, made, dayMillis),
		changeKey(3, "pro", "", quota{}),
		changeKey(4, enterprisePlan, "", quota{PerMinute: 7, PerDay: 70})} {
		mustInsertKey(t, s, apiKey{})
		must(t, errorOf(s.edit(t.Context(), change)))
		old := &apiKey{ID: int64(i) + 1, Plan: freePlan, CreatedAt: made}
		if i == 3 {
			old.Plan = enterprisePlan
			old.quota = quota{PerMinute: 7, PerDay: 69}
		}
		id, err := rotateKey(t.Context(), s, old, old, newSecret(false).digest(), made+1)
		if id != 0 || err == nil {
			t.Errorf("the successor of key %d is key %d, %v", i+1, id, err)
		}
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
		s.generation.Add(1) // as a look does that finds what another program has written
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

// TestAKeyWhoseRowIsGoneIsForgotten: a guess of it is a guess again, and it is busy no more.
func TestAKeyWhoseRowIsGoneIsForgotten(t *testing.T) {
	s := newStore(t)
	k := newKeyring(s, false)
	deleted, kept := mustInsertKey(t, s, apiKey{}), mustInsertKey(t, s, apiKey{})
	for _, token := range []secret{deleted, kept} {
		mustAuthenticate(t, k, token, testTime)
	}
	mustWrite(t, s, sqlOf("DELETE FROM api_keys WHERE id = 1"))
	s.forget() // as a look does that finds what another program has written
	mustRefuseKey(t, k, bearerHeader(deleted), testTime, CodeInvalidKey)
	mustAuthenticate(t, k, kept, testTime)
	wantEqual(t, len(k.newest()), 1, "the keys that are remembered")
	wantEqual(t, k.known.size, 1, "their size")
}

// wantDeprecatedUse checks when a key is shown to have used the deprecated operation last.
func wantDeprecatedUse(t testing.TB, s *store, id int64, want instant) {
	t.Helper()
	wantEqual(t, deprecatedUseOf(t, s, id), want,
		"the deprecated use of key ", id)
}

// TestDeprecatedUsesAreWrittenOnceAndSurviveARestart. Each service of a cluster writes what it has
// seen, and one that writes late takes no later use back.
func TestDeprecatedUsesAreWrittenOnceAndSurviveARestart(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		l, late := newLedger(s, tenMinutes), newLedger(s, tenMinutes)
		for range 3 {
			mustInsertKey(t, s, apiKey{})
		}
		first := instantOf(testTime)
		later := first + 1000
		late.noteDeprecatedUse(1, first)
		for _, c := range []struct {
			policy string
			uses   []instant
			want   int64
		}{
			{"it was not used", nil, 0},
			{"it was used", []instant{first}, 1},
			{"it was not used again", nil, 0},
			{"it was used twice", []instant{first, later}, 1},
		} {
			before := commitsOf(s)
			for _, use := range c.uses {
				l.noteDeprecatedUse(1, use)
			}
			mustFlush(t, l)
			got := commitsOf(s) - before
			if got != c.want && !s.engine.shared() { // a flush to a cluster also reads bans
				t.Errorf("%s: %d commits, want %d", c.policy, got, c.want)
			}
		}
		mustFlush(t, late)
		// What comes during a flush is written by the next.
		honest := s.engine
		s.engine = &hookedEngine{engine: honest, beforeWrite: func() {
			l.noteDeprecatedUse(1, later+1)
		}}
		l.noteDeprecatedUse(2, first)
		mustFlush(t, l)
		s.engine = honest
		wantDeprecatedUse(t, s, 1, later)
		mustFlush(t, l)
		_ = s.Close()
		s = openDatabase(t, db)
		wantDeprecatedUse(t, s, 1, later+1)
		wantDeprecatedUse(t, s, 2, first)
		wantDeprecatedUse(t, s, 3, 0)
	})
}

func TestSecretsRedactThemselves(t *testing.T) {
	token := secret(keyWith("pet_live_", someBody))
	type holder struct{ Key secret }
	held := map[string]any{
		"key":  token,
		"in":   holder{token},
		"list": []secret{token},
	}
	encoded, err := json.Marshal(held)
	must(t, err)
	printed := []string{string(encoded)}
	var log bytes.Buffer
	for _, handler := range []slog.Handler{
		slog.NewTextHandler(&log, nil),
		slog.NewJSONHandler(&log, nil),
	} {
		log.Reset()
		slog.New(handler).Info("made", "key", token, "held", held)
		printed = append(printed, log.String())
	}
	for _, format := range []string{"%v", "%s", "%#v", "%+v", "%q"} {
		printed = append(printed, fmt.Sprintf(format, token))
		printed = append(printed, fmt.Sprintf(format, held))
	}
	for _, text := range printed {
		isHidden := !strings.Contains(text, string(token[9:20]))
		if !isHidden || !strings.Contains(text, string(token[43:])) {
			t.Errorf("%s has not just the last four characters", text)
		}
	}
}

func TestOnlyTheDigestOfAKeyIsInTheDatabase(t *testing.T) {
	k := newKeys(t)
	open := openDatabase(t, k.db) // keeps the write-ahead log from being folded away
	tokens := []string{k.mint("create", "-name", "shop"), k.mint("rotate", "1")}
	mustAuthenticate(t, newKeyring(open, false), secret(tokens[0]), time.Now())
	stored := ""
	for _, content := range filesIn(t, filepath.Dir(k.db)) {
		stored += content
	}
	for _, token := range tokens {
		sum := sha256.Sum256([]byte(token))
		if !strings.Contains(stored, string(sum[:])) || !strings.Contains(stored, token[43:]) {
			t.Error("the digest or the last four characters are not in the files")
		}
		for from := len("pet_live_"); from+8 <= len(token); from++ {
			if part := token[from : from+8]; strings.Contains(stored, part) {
				t.Errorf("%q of the key is in the files", part)
			}
		}
	}
}

func FuzzAuthorization(f *testing.F) {
	good := keyWith("pet_live_", someBody)
	seeds := "|Bearer|Bearer GOOD|bearer   GOOD|Bearer GOOD |Bearer GOOD GOOD|Bearer\tGOOD|" +
		"Basic GOOD|GOOD|Bearer xGOOD|Bearer TEST|Bearer \x00|BEARER é"
	words := strings.NewReplacer("GOOD", good, "TEST", keyWith("pet_test_", someBody))
	for seed := range strings.SplitSeq(words.Replace(seeds), "|") {
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
