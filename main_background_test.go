package main

// What runs beside the requests, in fake time.

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// background is a service in fake time with what runs beside its requests.
type background struct {
	*service
	t    *testing.T
	path string // of its database
	log  *serverLog
	stop func() error
}

// withBackground runs a test in fake time. check sees the statements of the service.
func withBackground(t *testing.T, check func(statement), test func(*testing.T, *background)) {
	t.Helper()
	withPair(t, nil, check, test)
}

// withPair does the same for a service that looks after a certificate.
func withPair(t *testing.T, pair *tlsPair, check func(statement),
	test func(*testing.T, *background)) {
	t.Helper()
	path := databasePath(t) // outside, since its folder outlives the fake time
	watch := func(st statement, _ []any) { check(st) }
	synctest.Test(t, func(t *testing.T) {
		s, err := openStore(t.Context(), path, openToServe, testLog)
		must(t, err)
		t.Cleanup(func() { s.Close() })
		s.engine = &watchedEngine{engine: s.engine, check: watch}
		log := newServerLog()
		service := newService(s, settings{}, newLogger(log, "json", slog.LevelInfo))
		stop := runBackground(service, newOperator(service), pair)
		test(t, &background{service, t, path, log, stop})
	})
}

func unwatched(statement) {}

// use counts one request of the account 1.
func (b *background) use() {
	b.t.Helper()
	account := &account{usageID: 1, quota: quota{10, 10}}
	if _, err := b.usage.admit(account, time.Now()); err != nil {
		b.t.Error(err)
	}
}

// wantStored checks how many of these requests are in the database.
func (b *background) wantStored(want int64) {
	b.t.Helper()
	u, err := readUsage(context.Background(), b.store, 1)
	must(b.t, err)
	if u.minute.used != want {
		b.t.Errorf("%d requests are stored, want %d", u.minute.used, want)
	}
}

// wantLog checks that the log has only lines with these texts, in this order.
func (b *background) wantLog(texts ...string) {
	b.t.Helper()
	lines := slices.Collect(strings.Lines(b.log.String()))
	if !slices.EqualFunc(lines, texts, strings.Contains) {
		b.t.Errorf("the log is %s, want lines with %q", b.log, texts)
	}
}

func TestUsageIsStoredWithinASecondAndByAStop(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		mustInsertKey(t, b.store, apiKey{})
		used := instantOf(time.Now())
		b.use()
		b.usage.noteDeprecatedUse(1, used)
		time.Sleep(time.Second)
		b.wantStored(1)
		if got := deprecatedUseOf(t, b.store, 1); got != used {
			t.Errorf("the deprecated use is stored as %v, want %v", got, used)
		}
		b.use()
		must(t, b.stop())
		b.wantStored(2)
		b.wantLog()
	})
}

func TestARevocationHoldsWithinASecond(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		other := openDatabase(t, b.path)
		token := mustInsertKey(t, b.store, apiKey{})
		mustAuthenticate(t, b.keys, token, time.Now())
		must(t, revokeNow(t.Context(), other, 1, instantOf(time.Now())))
		time.Sleep(time.Second)
		mustRefuseKey(t, b.keys, bearerHeader(token), time.Now(), CodeInvalidKey)
		must(t, b.stop())
	})
}

const oldRecords = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
	INSERT INTO idempotency SELECT 1, 'old ' || i, x'00', 1, 1 FROM n`

func TestOldIdempotencyKeysAndDaysAreRemovedWithinAMinute(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		oldDay := sqlOf("INSERT INTO usage_days VALUES (1, 1, 1, 0, 0)")
		_, err := b.store.write(t.Context(), sqlOf(oldRecords), oldDay)
		must(t, err)
		time.Sleep(time.Minute + time.Second)
		left := readNumber(t, b.store, "SELECT count(*) FROM idempotency")
		days := readNumber(t, b.store, "SELECT count(*) FROM usage_days")
		if left != 0 || days != 0 {
			t.Errorf("%d old records and %d old days are left", left, days)
		}
		must(t, b.stop())
	})
}

// TestAStopEndsThePurge: with a lot to delete it would hold the stop up.
func TestAStopEndsThePurge(t *testing.T) {
	var deletes, release chan bool
	check := func(st statement) {
		if strings.HasPrefix(st.query, "DELETE FROM idempotency") {
			deletes <- true
			<-release
		}
	}
	withBackground(t, check, func(t *testing.T, b *background) {
		deletes, release = make(chan bool), make(chan bool)
		must(t, errorOf(b.store.write(t.Context(), sqlOf(oldRecords))))
		<-deletes
		stopped := make(chan error)
		go func() { stopped <- b.stop() }()
		synctest.Wait()
		close(release)
		must(t, <-stopped)
		if left := readNumber(t, b.store, "SELECT count(*) FROM idempotency"); left != 1500 {
			t.Errorf("%d records are left, want 1500 after one transaction", left)
		}
		b.wantLog()
	})
}

// TestAPanicInTheBackgroundEndsNothing but the work that it happened in.
func TestAPanicInTheBackgroundEndsNothing(t *testing.T) {
	var broken atomic.Bool
	check := func(st statement) {
		if broken.Load() && !strings.HasPrefix(st.query, "SELECT") {
			panic("boom")
		}
	}
	withBackground(t, check, func(t *testing.T, b *background) {
		broken.Store(true)
		b.use()
		time.Sleep(501 * time.Millisecond)
		broken.Store(false)
		time.Sleep(500 * time.Millisecond)
		b.wantStored(1)
		b.wantLog(`"ERROR","msg":"cannot write usage","error":"panic: boom`,
			`"msg":"can write usage again"`)
		must(t, b.stop())
	})
}

func TestWhatGoesOnFailingIsLoggedOnce(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		b.use()
		must(t, b.store.Close())
		time.Sleep(3 * time.Minute)
		if err := b.stop(); !errors.Is(err, errUnavailable) {
			t.Errorf("the last writing of usage says %v", err)
		}
		for _, what := range []string{"look for edits of other programs", "write usage",
			"remove idempotency records"} {
			message := `"level":"ERROR","msg":"cannot ` + what + `"`
			if n := strings.Count(b.log.String(), message); n != 1 {
				t.Errorf("it says %d times that it cannot %s", n, what)
			}
		}
	})
}

// TestAStopDoesNotRepeatWhatCannotSucceed: a file of the database is gone for good.
func TestAStopDoesNotRepeatWhatCannotSucceed(t *testing.T) {
	withBackground(t, unwatched, func(t *testing.T, b *background) {
		b.use()
		must(t, os.Remove(b.path+"-lock"))
		begin := time.Now()
		err := b.stop()
		if !errors.Is(err, errLostFile) || time.Since(begin) > 0 {
			t.Errorf("after %v the stop says %v", time.Since(begin), err)
		}
	})
}

// TestWhatIsSlowIsNotRepeatedAfterAStop: it would hold up the stop once more.
func TestWhatIsSlowIsNotRepeatedAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		work := func(context.Context) error {
			times++
			time.Sleep(5 * time.Second)
			return nil
		}
		for range 30 { // of two channels that are ready, select takes any
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			repeat(ctx, time.Second, "work", work, testLog)
			cancel()
		}
		if times != 30 {
			t.Errorf("in 30 stops, slow work is done %d times", times)
		}
	})
}

// TestTheLastWritingOfUsageIsTriedFor10Seconds: a lock that is held when the service stops is
// commonly let go a moment later.
func TestTheLastWritingOfUsageIsTriedFor10Seconds(t *testing.T) {
	const fullDisk = `CREATE TRIGGER full BEFORE INSERT ON usage
		BEGIN SELECT RAISE(ABORT, 'full'); END`
	for policy, c := range map[string]struct {
		broken, repaired string // what another program does when the service stops, and later
		after            time.Duration
		stored           int64
		takes            time.Duration // and less than a second more
	}{
		"a lock that is let go in time": {
			"BEGIN IMMEDIATE", "ROLLBACK", 9 * time.Second, 1, 9 * time.Second,
		},
		"a lock that is held for longer": {
			"BEGIN IMMEDIATE", "ROLLBACK", 20 * time.Second, 0, 10 * time.Second,
		},
		"a disk that is full for a while": {
			fullDisk, "DROP TRIGGER full", 9 * time.Second, 1, 9 * time.Second,
		},
	} {
		t.Run(policy, func(t *testing.T) {
			withBackground(t, unwatched, func(t *testing.T, b *background) {
				time.Sleep(time.Millisecond) // so that no tick falls on the end
				b.use()
				outside := otherProgram(t, b.path, c.broken)
				repaired := time.AfterFunc(c.after, func() { _, _ = outside.Exec(c.repaired) })
				defer repaired.Stop()
				began := time.Now()
				err := b.stop()
				if took := time.Since(began); took < c.takes || took > c.takes+time.Second {
					t.Errorf("the stop takes %v, want %v", took, c.takes)
				}
				if stored := err == nil; stored != (c.stored == 1) {
					t.Errorf("the stop says %v", err)
				}
				b.wantStored(c.stored)
			})
		})
	}
}

func TestUsageIsWrittenToAClusterByAStop(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, _ *fakeCluster, s *store) {
		service := newService(s, settings{}, testLog)
		b := &background{service: service, t: t, stop: runBackground(service, nil, nil)}
		b.use()
		must(t, b.stop())
		b.wantStored(1)
	})
}

// TestAStopWritesUsageOnce if some is not written yet, and otherwise not at all. On a cluster it
// writes once in any case: every flush reads the bans of other services.
func TestAStopWritesUsageOnce(t *testing.T) {
	for _, c := range []struct {
		policy        string
		before        func(b *background)
		file, cluster int64
	}{
		{"nothing was counted", func(*background) {}, 0, 1},
		{"all is written", func(b *background) {
			b.use()
			time.Sleep(time.Second + time.Millisecond) // no tick falls on the stop
		}, 0, 1},
		{"some is not written", func(b *background) {
			time.Sleep(time.Millisecond)
			b.use()
		}, 1, 1},
	} {
		var writes atomic.Int64
		check := func(st statement) {
			if st.query == mergeDays {
				writes.Add(1)
			}
		}
		wantWrites := func(b *background, want int64) {
			c.before(b)
			writes.Store(0)
			must(b.t, b.stop())
			if n := writes.Load(); n != want {
				engine, _ := b.store.engine.describe()
				b.t.Errorf("%s: the stop writes usage %d times, want %d", engine, n, want)
			}
		}
		t.Run(c.policy, func(t *testing.T) {
			withBackground(t, check, func(_ *testing.T, b *background) { wantWrites(b, c.file) })
			onFakeCluster(t, func(t *testing.T, _ *fakeCluster, s *store) {
				s.engine = &watchedEngine{s.engine, func(st statement, _ []any) { check(st) }}
				service := newService(s, settings{}, testLog)
				b := &background{service: service, t: t, stop: runBackground(service, nil, nil)}
				wantWrites(b, c.cluster)
			})
		})
	}
}

// TestAStopWaitsForTheUsageThatIsBeingWritten, and does not write it again.
func TestAStopWaitsForTheUsageThatIsBeingWritten(t *testing.T) {
	var writes int
	var release chan bool
	check := func(st statement) {
		if st.query == mergeDays {
			writes++
			<-release
		}
	}
	withBackground(t, check, func(t *testing.T, b *background) {
		release = make(chan bool)
		b.use()
		time.Sleep(501 * time.Millisecond)
		stopped := make(chan error)
		go func() { stopped <- b.stop() }()
		synctest.Wait()
		close(release)
		must(t, <-stopped)
		b.wantStored(1)
		if writes != 1 {
			t.Errorf("it is written %d times", writes)
		}
	})
}

// testPair is a pair that has been read from files.
func testPair(t testing.TB) *tlsPair {
	t.Helper()
	file := writePair(t, t.TempDir(), "a")
	pair := &tlsPair{certFile: file, keyFile: file}
	must(t, pair.renew())
	return pair
}

// TestARenewedCertificateIsServed to new connections, and a broken one never.
func TestARenewedCertificateIsServed(t *testing.T) {
	pair := testPair(t)
	renewed, err := os.ReadFile(writePair(t, t.TempDir(), "b"))
	must(t, err)
	const (
		broken = `"level":"ERROR","msg":"cannot use the files of -tls-cert and -tls-key"`
		again  = `"level":"INFO","msg":"can use the files of -tls-cert and -tls-key again"`
	)
	withPair(t, pair, unwatched, func(t *testing.T, b *background) {
		s, l := startFront(t, pair, http.NotFound)
		wantServed := func(want string, logged ...string) {
			t.Helper()
			time.Sleep(31 * time.Second)
			conn := tlsClient(l.pipe(), "http/1.1")
			defer conn.Close()
			must(t, conn.Handshake())
			if got := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
				t.Errorf("a new connection gets the certificate %s, want %s", got, want)
			}
			b.wantLog(logged...)
		}
		wantServed("a")
		must(t, os.WriteFile(pair.certFile, renewed[:20], 0o600)) // half written
		wantServed("a", broken)
		wantServed("a", broken) // once
		must(t, os.WriteFile(pair.certFile, renewed, 0o600))
		wantServed("b", broken, again)
		must(t, s.stop(t.Context(), l))
		must(t, b.stop())
	})
}

// TestAStopWaitsForNoCertificate: its file may be on a file system that hangs. Here the log hangs in
// which its renewal says that there is no file.
func TestAStopWaitsForNoCertificate(t *testing.T) {
	pair := testPair(t)
	pair.certFile += ".missing"
	withPair(t, pair, unwatched, func(t *testing.T, b *background) {
		for range cap(b.log.lines) {
			b.log.lines <- serverLine{}
		}
		time.Sleep(31 * time.Second)
		b.use()
		must(t, b.stop())
		b.wantStored(1)
		b.wantLog("use the files of -tls-cert")
		<-b.log.lines // lets the renewal end
	})
}

// TestAWrongClockIsWarnedOf once a minute, when a stored minute ends later than clocks within a
// second of each other can make it end.
func TestAWrongClockIsWarnedOf(t *testing.T) {
	for ahead, want := range map[time.Duration]int{61: 0, 62: 1, 200: 1} {
		withBackground(t, unwatched, func(t *testing.T, b *background) {
			minute := bucket{used: 1, ends: instantOf(time.Now().Add(ahead * time.Second))}
			_, err := b.store.write(t.Context(), saveUsage(1, &usage{minute: minute}))
			must(t, err)
			b.use()
			time.Sleep(3 * time.Minute)
			must(t, b.stop())
			if n := strings.Count(b.log.String(), "clock is wrong"); n != want {
				t.Errorf("of a minute that ends in %d s %d warnings are logged", ahead, n)
			}
		})
	}
}
