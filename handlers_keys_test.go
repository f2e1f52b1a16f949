package main

// What keys and addresses may do, as a client sees it: who is let in, how often, and when a key is
// banned. The arithmetic of it is tested beside limits.go.

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// from is the header in which a proxy names its client.
func from(address string) string { return "X-Forwarded-For: " + address }

// openShopBehindAProxy is a shop in fake time that believes X-Forwarded-For.
func openShopBehindAProxy(t *testing.T) *shop {
	return openShopInFakeTime(t, func(c *settings) { c.clientIPHeader = "X-Forwarded-For" })
}

func TestEveryRequestNeedsAKey(t *testing.T) {
	s := openShop(t)
	for code, credentials := range map[ErrorCode][]string{
		CodeMissingKey: {"", "Bearer", "Basic dXNlcjpwYXNz", "Bearers " + s.key, s.key},
		CodeInvalidKey: {
			"Bearer " + s.key + "x",
			"Bearer " + s.key + " x",
			"Bearer " + s.key[:len(s.key)-1] + "!",
			"Bearer " + string(newSecret(false)),
			"Bearer " + string(newSecret(true)),
		},
	} {
		challenge := `Bearer realm="petstore"`
		if code == CodeInvalidKey {
			challenge += `, error="invalid_token"`
		}
		for _, sent := range credentials {
			header := "Authorization: " + sent
			for _, a := range []reply{
				s.list(header),
				s.post(header),
				s.get("/v1/pets/1", header),
				s.get("/v1/nowhere", header),
			} {
				a.is(401, code).has("WWW-Authenticate: " + challenge)
				a.has(`RateLimit-Policy: "address";q=60;w=60`)
			}
		}
	}
	s.get("/v1/pets?key="+s.key, noKey).is(401, CodeMissingKey)
	s.list("Authorization: bearer " + s.key).is(200).has("WWW-Authenticate:")
	s.list("Authorization: BEARER   " + s.key).is(200)
}

// TestTwoAuthorizationHeadersAreAnInvalidKey, whatever they hold.
func TestTwoAuthorizationHeadersAreAnInvalidKey(t *testing.T) {
	s := openShop(t)
	good := "Bearer " + s.key
	test := "Bearer " + string(newSecret(true))
	held := []string{good, "", "Bearer", "Basic dXNlcjpwYXNz", s.key, test, "Bearer nonsense"}
	for _, first := range held {
		for _, second := range held {
			r, err := http.NewRequest("GET", s.server.URL+"/v1/pets", nil)
			must(t, err)
			r.Header["Authorization"] = []string{first, second}
			s.send(r).is(401, CodeInvalidKey).
				has(`WWW-Authenticate: Bearer realm="petstore", error="invalid_token"`).
				tells("the API key is not valid")
		}
	}
}

func TestAStagingInstanceTakesOnlyTestKeys(t *testing.T) {
	s := openShop(t, func(c *settings) { c.staging = true })
	if !strings.HasPrefix(s.key, "pet_test_") {
		t.Fatal("the shop's key is", s.key[:9])
	}
	s.list().is(200)
	live := withKey(string(newSecret(false)))
	s.list(live).is(401, CodeInvalidKey).
		tells("this service takes only API keys that begin with pet_test_")
}

// Limits of keys

func TestEveryResponseSaysWhereTheKeyStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		s.key = s.newKey(quota{3, 100})
		start := time.Now().Unix()
		time.Sleep(1500 * time.Millisecond)
		stands := func(a reply, left, reset int64, rateLimit string) {
			t.Helper()
			a.has("X-RateLimit-Limit: 3", fmt.Sprint("X-RateLimit-Remaining: ", left),
				fmt.Sprint("X-RateLimit-Reset: ", start+reset), "RateLimit: "+rateLimit,
				`RateLimit-Policy: "minute";q=3;w=60, "day";q=100;w=86400`)
		}
		// The window begins at 1.5 s and ends at 61.5, reported as 62.
		stands(s.list().is(200), 2, 62, `"minute";r=2;t=60, "day";r=99;t=86400`)
		time.Sleep(20 * time.Second)
		stands(s.post("=x").is(400), 1, 62, `"minute";r=1;t=40, "day";r=98;t=86380`)
		match := s.list("If-None-Match: *").is(304)
		stands(match, 0, 62, `"minute";r=0;t=40, "day";r=97;t=86380`)
		time.Sleep(300 * time.Millisecond)
		refused := s.list().is(429, CodeRateLimited).has("Retry-After: 40")
		stands(refused, 0, 62, `"minute";r=0;t=40, "day";r=97;t=86380`)
		time.Sleep(40 * time.Second)
		again := s.list().is(200).has("Retry-After:")
		stands(again, 2, 122, `"minute";r=2;t=60, "day";r=96;t=86340`)
	})
}

func TestOf200ParallelRequestsExactly100AreAdmitted(t *testing.T) {
	s := openShop(t)
	s.key = s.newKey(quota{100, 1000})
	var admitted, refused atomic.Int64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			switch s.list().status {
			case 200:
				admitted.Add(1)
			case 429:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 100 || refused.Load() != 100 {
		t.Errorf("%d are admitted, and %d refused", admitted.Load(), refused.Load())
	}
}

// Limits of addresses

func TestCallersWithoutAValidKeyAreLimitedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopBehindAProxy(t)
		for i := range 60 {
			a := s.list(noKey).is(401).has("X-RateLimit-Limit: 60")
			a.has("RateLimit: " + fmt.Sprintf(`"address";r=%d;t=60`, 59-i))
		}
		a := s.list(withKey("nonsense")).is(429, CodeRateLimited).has("Retry-After: 60")
		a.has("X-RateLimit-Remaining: 0", "WWW-Authenticate:")
		s.list().is(200) // a valid key is never refused for its address
		s.list(noKey, from("192.0.2.1, 203.0.113.9")).is(401)
		time.Sleep(time.Minute)
		s.list(noKey).is(401).has("X-RateLimit-Remaining: 59")
	})
}

// TestAnAddressThatIsSpentIsLoggedOnceAWindow: otherwise nobody could tell who floods the service
// with 401s.
func TestAnAddressThatIsSpentIsLoggedOnceAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopBehindAProxy(t)
		for window := 1; window <= 2; window++ {
			last := ""
			for i := range 100 {
				a := s.list(noKey, from("2001:db8::1"))
				if i == 59 {
					last = a.header.Get("X-Request-Id")
				}
			}
			s.wantLog(`"msg":"an address is spent: too many requests without a valid key",` +
				`"address":"2001:db8::/64","requests":60,"request":"` + last)
			if lines := strings.Count(s.log.String(), "an address is spent"); lines != window {
				t.Errorf("%d lines are logged in %d windows", lines, window)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestManySpentAddressesFillNoLog: one stranger may have them all.
func TestManySpentAddressesFillNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopBehindAProxy(t)
		spend := func(addresses int) {
			for i := range addresses {
				for range addressQuota {
					s.list(noKey, from(fmt.Sprintf("2001:db8:0:%x::1", i)))
				}
			}
		}
		spend(50)
		time.Sleep(time.Minute)
		spend(2)
		if lines := strings.Count(s.log.String(), "\n"); lines != 2 { // one for each moment
			t.Errorf("the log is %s", s.log.String())
		}
	})
}

// TestGuessesFromASpentAddressAreLookedUpOneAtATime for the whole service, and few wait for their
// turn. A key that the service knows waits for none of them.
func TestGuessesFromASpentAddressAreLookedUpOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopBehindAProxy(t)
		unmet := s.newKey(quota{10, 100})
		s.list().is(200) // now the service knows the shop's own key
		for range 60 {
			s.list(noKey, from("192.0.2.8")).is(401)
			s.list(noKey, from("192.0.2.9")).is(401)
		}
		var reads atomic.Int64
		next := make(chan struct{}) // lets one lookup end
		watch := func(st statement, columns []any) {
			if columns == nil && strings.Contains(st.query, "k.digest = unhex(?)") {
				reads.Add(1)
				<-next
			}
		}
		s.store.engine = &watchedEngine{engine: s.store.engine, check: watch}
		guess := func() string { return withKey(string(newSecret(false))) }

		var wg sync.WaitGroup
		var mu sync.Mutex // guards statuses
		statuses := map[string]int{}
		start := func(what, key, address string) {
			wg.Go(func() {
				a := s.list(key, from(address))
				mu.Lock()
				defer mu.Unlock()
				statuses[fmt.Sprint(what, " ", a.status)]++
			})
			synctest.Wait()
		}
		time.Sleep(100 * time.Millisecond) // since the last line of the log
		start("guess", guess(), "192.0.2.8")
		start("unmet", withKey(unmet), "192.0.2.8")
		start("unmet", withKey(unmet), "192.0.2.8")
		for range maxSuspects - 3 {
			start("guess", guess(), "192.0.2.9")
		}
		for range 20 { // more than may wait
			a := s.list(guess(), from("192.0.2.9")).is(503)
			a.has("Retry-After: 1", "X-RateLimit-Remaining: 0", "WWW-Authenticate:")
		}
		s.wantLog(`"msg":"a request gets 503, since its key cannot be looked up",` +
			`"address":"192.0.2.9/32",`)
		s.list(from("192.0.2.8")).is(200)
		s.list(withKey("nonsense"), from("192.0.2.8")).is(429, CodeRateLimited)
		wantReads := func(want int64) {
			t.Helper()
			if synctest.Wait(); reads.Load() != want {
				t.Errorf("%d keys were looked up, want %d", reads.Load(), want)
			}
		}
		wantReads(1)
		start("elsewhere", guess(), "192.0.2.10") // its address is not spent
		wantReads(2)
		next <- struct{}{}
		for i := range int64(maxSuspects - 1) { // of two with the valid key one is looked up
			next <- struct{}{}
			wantReads(min(3+i, maxSuspects))
		}
		wg.Wait()
		want := map[string]int{"guess 429": maxSuspects - 2, "unmet 200": 2, "elsewhere 401": 1}
		if !maps.Equal(statuses, want) {
			t.Errorf("the statuses are %v, want %v", statuses, want)
		}
		close(next) // nobody waits any more, so the next guess is looked up
		s.list(guess(), from("192.0.2.9")).is(429)
	})
}

// TestAKnownKeyThatMayHaveChangedIsNoGuess: it is read anew, and waits for no guesses from its
// address.
func TestAKnownKeyThatMayHaveChangedIsNoGuess(t *testing.T) {
	s := openShop(t)
	s.list().is(200)
	for range 60 {
		s.list(noKey).is(401)
	}
	s.service.keys.suspects.Add(maxSuspects) // as many lookups as may wait
	s.list(withKey(string(newSecret(false)))).is(503)
	s.store.editsSeen.Add(1) // as when another program has written
	s.list().is(200)
}

// Bans

func TestInsistingAfter429BansTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		key := withKey(s.newKey(quota{3, 100}))
		for range 3 {
			s.list(key).is(200)
		}
		// The first refusal is no strike, and three strikes are as many as the limit, not more.
		for range 1 + 3 {
			s.list(key).is(429, CodeRateLimited)
		}
		end := strconv.FormatInt(time.Now().Add(10*time.Minute).Unix(), 10)
		banned := func(retry string) {
			t.Helper()
			a := s.list(key).is(429, CodeKeyBanned).has("Retry-After: " + retry)
			a.has("X-RateLimit-Limit: 3", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: "+end)
		}
		banned("600")
		time.Sleep(5 * time.Minute)
		banned("300") // asking again does not lengthen it
		s.list().is(200)
		time.Sleep(5*time.Minute - time.Millisecond)
		banned("1")
		time.Sleep(time.Millisecond)
		s.list(key).is(200).has("X-RateLimit-Remaining: 2")
		s.wantBans(1)
	})
}

// wantBans checks how many bans are counted and logged.
func (s *shop) wantBans(want int) {
	s.t.Helper()
	logged := strings.Count(s.log.String(), `"msg":"key banned"`)
	if counted := s.service.bans.Load(); counted != int64(want) || logged != want {
		s.t.Errorf("%d bans are counted, and %d logged, want %d", counted, logged, want)
	}
}

// TestABanThatCannotBeStoredIsLogged: the key stays rate_limited until the next one is stored.
func TestABanThatCannotBeStoredIsLogged(t *testing.T) {
	s := openShop(t)
	s.wantError = true
	s.key = s.newKey(quota{1, 100})
	s.list().is(200)
	s.list().is(429, CodeRateLimited)
	s.list().is(429, CodeRateLimited)
	readOnly(t, s.store, true)
	a := s.list().is(429, CodeRateLimited).has("X-RateLimit-Limit: 1")
	if retry := a.number("Retry-After"); retry < 1 || retry > 60 {
		t.Errorf("Retry-After is %d", retry)
	}
	s.wantLog(`"level":"ERROR","msg":"cannot ban a key","key":2,"request":"` +
		a.header.Get("X-Request-Id"))
	s.wantBans(0)
}

func TestEveryOperationIsLimited(t *testing.T) {
	s := openShop(t)
	for _, target := range []string{
		"GET /v1/pets", "POST /v1/pets", "GET /v1/pets/1", "GET /v1/nowhere", "PUT /v1/pets",
	} {
		method, path, _ := strings.Cut(target, " ")
		key := withKey(s.newKey(quota{1, 10}))
		s.call(method, path, key).has("X-RateLimit-Remaining: 0")
		s.call(method, path, key).is(429, CodeRateLimited).has("Retry-After: 60")
		s.call(method, path, key).is(429, CodeRateLimited)
		s.call(method, path, key).is(429, CodeKeyBanned)
	}
}

// TestTheDayTellsHowEveryRequestOfAKeyEnded: admitted or refused, and an error.
func TestTheDayTellsHowEveryRequestOfAKeyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShopInFakeTime(t)
		s.wantError = true
		days := func(what, want string) {
			t.Helper()
			must(t, s.service.usage.flush(t.Context(), time.Now))
			if got := fmt.Sprint(storedDays(t, s.store)); got != "["+want+"]" {
				t.Errorf("after %s %s is stored", what, got)
			}
		}
		s.list().is(200)
		s.post("={}").is(400)
		s.get("/v1/pets/7").is(404)
		s.list(withKey("nobody")).is(401)
		s.get("/nowhere").is(404) // which no key opens
		days("ordinary requests", "2000-01-01: 3 admitted, 0 refused, 0 errors")

		s.route("/v1/slow", func(http.ResponseWriter, *http.Request, caller) error {
			time.Sleep(time.Millisecond)
			return errors.New("slow")
		})
		s.route("/v1/boom", func(http.ResponseWriter, *http.Request, caller) error {
			panic("boom")
		})
		readOnly(t, s.store, true)
		s.post(rexBody).is(503)
		s.get("/v1/boom").is(500)
		readOnly(t, s.store, false)
		days("two errors", "2000-01-01: 5 admitted, 0 refused, 2 errors")

		s.service.usage.usages = map[int64]*usage{}
		fail := func(st statement, columns []any) {
			if strings.Contains(st.query, "FROM usage WHERE id = ?") && columns != nil {
				panic("the usage cannot be read")
			}
		}
		s.service.usage.store = storeOn(&watchedEngine{engine: s.store.engine, check: fail})
		s.list().is(500)
		s.service.usage.store = s.store
		days("a request that nobody could admit", "2000-01-01: 5 admitted, 0 refused, 3 errors")

		time.Sleep(24*time.Hour - time.Millisecond)
		s.get("/v1/slow").is(500) // and it is midnight
		s.list().is(200)
		days("midnight", "2000-01-01: 6 admitted, 0 refused, 4 errors "+
			"2000-01-02: 1 admitted, 0 refused, 0 errors")
	})
}
