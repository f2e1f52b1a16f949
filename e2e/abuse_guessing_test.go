package e2e

// Guessers of keys, and floods of addresses.

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// guess is what somebody without a key sends.
type guess struct{ authorization, forwardedFor string }

// guessed is what a guess got.
type guessed struct {
	status     int
	code, left string
}

// flood makes n guesses over 8 connections and counts what they got.
func (s *server) flood(n int, next func(i int) guess) map[guessed]int {
	var mu sync.Mutex
	got := map[guessed]int{}
	var guessers sync.WaitGroup
	for first := range 8 {
		guessers.Go(func() {
			client := &http.Client{Transport: transport(), Timeout: 30 * time.Second}
			defer client.CloseIdleConnections()
			for i := first; i < n; i += 8 {
				g := next(i)
				a, err := s.send(s.t.Context(), client, "GET", "/pets", "",
					"Authorization:"+g.authorization, "X-Forwarded-For:"+g.forwardedFor)
				if err != nil {
					s.t.Error(err)
					return
				}
				mu.Lock()
				got[guessed{a.status, a.code, a.header.Get("X-RateLimit-Remaining")}]++
				mu.Unlock()
			}
		})
	}
	guessers.Wait()
	return got
}

// illFormedKey is wrong in one of many ways.
func illFormedKey() string {
	key := forge(randomText(32))
	at := rand.IntN(len(key))
	switch rand.IntN(6) {
	case 0:
		return key[:at] + key[at+1:]
	case 1:
		return key[:at] + "0" + key[at:]
	case 2:
		return strings.Repeat(key, 2+rand.IntN(100))
	case 3:
		return key[:at] + string([]byte{byte(0x80 + rand.IntN(0x80))}) + key[at+1:]
	case 4:
		return "pet_test_" + key[9:]
	}
	return key[:41] + forge(randomText(32))[41:]
}

// address is one of many IPv4 addresses.
func address(i int) string {
	return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}).String()
}

// TestGuessedKeysAreRefusedAndForgotten tries ten thousand well-formed keys and ten
// thousand ill-formed ones, first each from an address of its own, then all
// from the address that normal requests come from.
func TestGuessedKeysAreRefusedAndForgotten(t *testing.T) {
	s := start(t, slices.Concat(debugFlags, behindProxy)...)
	if forge(s.key[9:41]) != s.key {
		t.Fatal("what is forged has not the form of a key")
	}
	n := soak(t, 20_000)
	key := func(i int) string {
		if i%2 == 0 {
			return "Bearer " + forge(randomText(32))
		}
		return "Bearer " + illFormedKey()
	}
	leavesNothing(t, s, func() {
		before := normal(t, s, 100)
		var scattered, focused map[guessed]int
		var began time.Time
		during := beside(t, s, func() {
			scattered = s.flood(n, func(i int) guess { return guess{key(i), address(i)} })
			began = time.Now()
			focused = s.flood(n, func(i int) guess { return guess{key(i), ""} })
		})
		unnoticed(t, before, during)
		if refused := (guessed{401, "invalid_key", "59"}); scattered[refused] != n {
			t.Errorf("each from its own address, the guesses got %v, not %d times %v", scattered, n,
				refused)
		}
		refused := 0
		for got, times := range focused {
			switch {
			case got.status == 401 && got.code == "invalid_key":
				refused += times
			case got != guessed{429, "rate_limited", "0"}:
				t.Errorf("%d guesses from one address got %v", times, got)
			}
		}
		if most := inWindows(time.Since(began)); refused < 60 || refused > most {
			t.Errorf("%d guesses from one address were told that the key is invalid; it should "+
				"be 60 to %d", refused, most)
		}
	})
}

// inWindows is how many requests without a key one address may make at the most.
func inWindows(in time.Duration) int { return 60 * (1 + int(in/time.Minute)) }
