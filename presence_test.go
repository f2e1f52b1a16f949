package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// otherBoot is the id of another machine's run.
const otherBoot = "11111111-2222-3333-4444-555555555555"

// writeHost makes the entry of a service in F-host.
func writeHost(t testing.TB, path, boot string, count int) {
	t.Helper()
	writeText(t, path+"-host", fmt.Sprintf("%019d %s\n", count, boot))
}

// serveElsewhere renews an entry every second, as a service of another kernel does, until end. Of
// that service, neither lock nor log can be seen from here.
func serveElsewhere(t *testing.T, path string) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	writeHost(t, path, otherBoot, 1)
	serving.Go(func() {
		for count := 2; ctx.Err() == nil; count++ {
			writeHost(t, path, otherBoot, count)
			pause(ctx, time.Second)
		}
	})
	return func() {
		stop()
		serving.Wait()
	}
}

// wantOpened opens a database, which takes a time, and adds a pet to it.
func wantOpened(t *testing.T, path string, mode openMode, takes time.Duration) {
	t.Helper()
	wantTime(t, fmt.Sprint("the opening for ", mode), takes, takes, nil, func() error {
		s, err := openStore(t.Context(), path, mode, testLog)
		if err == nil {
			mustCreate(t, s, rex)
			must(t, s.Close())
		}
		return err
	})
}

// TestAnEntryOfAnotherKernelIsWatched before anything is written: a file system that passes no
// locks on does not show who uses a database on another machine. This kernel's own entry needs no
// watch.
func TestAnEntryOfAnotherKernelIsWatched(t *testing.T) {
	own, made := bootID(), madeDatabase(t)
	for what, prepare := range map[string]func(t *testing.T, path string) (takes time.Duration){
		"no entry": func(*testing.T, string) time.Duration { return 0 },
		"one that a kill has left behind": func(t *testing.T, path string) time.Duration {
			writeHost(t, path, own, 7)
			if own == "" { // where the runs of a machine cannot be told apart
				return hostWatch
			}
			return 0
		},
		"one that a power cut has left behind": func(t *testing.T, path string) time.Duration {
			writeHost(t, path, otherBoot, 7)
			return hostWatch
		},
		"what a power cut has left of one": func(t *testing.T, path string) time.Duration {
			writeText(t, path+"-host", strings.Repeat("\x00", 57))
			return hostWatch
		},
		"one of a system without ids": func(t *testing.T, path string) time.Duration {
			writeHost(t, path, "", 7)
			return hostWatch
		},
		"one that becomes this kernel's": func(t *testing.T, path string) time.Duration {
			if own == "" {
				return 0 // nothing to be watched
			}
			writeText(t, path+"-host", "") // as a service that begins makes it
			time.AfterFunc(hostWatch/3-time.Nanosecond, func() { writeHost(t, path, own, 7) })
			return hostWatch / 3
		},
		"one that ends": func(t *testing.T, path string) time.Duration {
			writeHost(t, path, otherBoot, 7)
			time.AfterFunc(hostWatch/3-time.Nanosecond, func() { _ = os.Remove(path + "-host") })
			return hostWatch / 3
		},
	} {
		for _, mode := range []openMode{openToServe, openExisting, openOrMake} {
			path := databasePath(t)
			copyDatabase(t, made, path)
			t.Run(fmt.Sprint(what, " ", mode), bubble(func(t *testing.T) {
				wantOpened(t, path, mode, prepare(t, path))
				wantOpened(t, path, mode, 0) // it is watched once
				isOwn := what == "one that a kill has left behind" ||
					what == "one that becomes this kernel's"
				if !isOwn || mode == openToServe {
					wantMissing(t, path+"-host")
				}
			}))
		}
	}
}

// TestWhoOnlyReadsLeavesAnEntryWhereItIs, and reads on if it cannot be read.
func TestWhoOnlyReadsLeavesAnEntryWhereItIs(t *testing.T) {
	made := madeDatabase(t)
	for _, mode := range []openMode{openToRead, openToCopy} {
		path := databasePath(t)
		copyDatabase(t, made, path)
		t.Run(fmt.Sprint(mode), bubble(func(t *testing.T) {
			opening := func() error {
				s, err := openStore(t.Context(), path, mode, testLog)
				if err == nil {
					err = s.Close()
				}
				return err
			}
			writeHost(t, path, otherBoot, 7)
			for range 2 {
				wantTime(t, "the opening", hostWatch, hostWatch, nil, opening)
			}
			must(t, os.Remove(path+"-host"))
			must(t, os.Mkdir(path+"-host", 0o700))
			wantTime(t, "the opening", 0, 0, nil, opening)
		}))
	}
}

// TestADatabaseThatAnotherKernelServesIsRefused, and nothing of it is changed.
func TestADatabaseThatAnotherKernelServesIsRefused(t *testing.T) {
	sc, copied, deleted := newScene(t), madeDatabase(t), databasePath(t)
	path := sc.db
	synctest.Test(t, func(t *testing.T) {
		defer serveElsewhere(t, path)()
		defer serveElsewhere(t, deleted)()
		writeText(t, path+".partial", "what that one restores")
		before := filesIn(t, filepath.Dir(path))
		delete(before, "pets.db-lock") // which a start makes
		for _, mode := range anyMode {
			wantNotOpened(t, path, mode, "a petstore on another machine serves it")
		}
		for _, command := range []string{"restore " + copied, "pet set -status sold 1",
			"pet export", "backup " + copied + ".new"} {
			_, _, err := petstore(t, nil, append(strings.Fields(command), "-db", path)...)
			wantRefusal(t, err, path, "a petstore on another machine serves it")
		}
		after := filesIn(t, filepath.Dir(path))
		delete(after, "pets.db-lock")
		wantSameFiles(t, before, after)
		wantEqual(t, readText(t, path+"-shm"), "", "the index of the log, which both would use")
		wantNotOpened(t, deleted, openToServe, "a petstore on another machine serves it")
		wantMissing(t, deleted)
	})
}

// TestAfterAPauseAServiceLooksWhoElseServes before it writes: others may have taken it for ended.
func TestAfterAPauseAServiceLooksWhoElseServes(t *testing.T) {
	for what, c := range map[string]struct {
		pause time.Duration
		entry func(t *testing.T, path string)
		lost  bool
	}{
		"its own entry": {time.Hour, func(*testing.T, string) {}, false},
		"another's": {hostWatch, func(t *testing.T, path string) {
			writeHost(t, path, otherBoot, 7)
		}, true},
		"none any more": {hostWatch, func(t *testing.T, path string) {
			must(t, os.Remove(path+"-host"))
		}, true},
		"none, without a pause": {hostWatch / 3, func(t *testing.T, path string) {
			must(t, os.Remove(path+"-host"))
		}, false},
		"none after one that nobody could read": {0, func(t *testing.T, path string) {
			must(t, os.Remove(path+"-host"))
			must(t, os.Mkdir(path+"-host", 0o700))
			time.Sleep(hostWatch)
			must(t, os.Remove(path+"-host"))
		}, true},
	} {
		path := madeDatabase(t)
		t.Run(what, bubble(func(t *testing.T) {
			s := openDatabaseFor(t, path, openToServe)
			mustCreate(t, s, rex)
			host := fileEngine(s).host
			host.mu.Lock()
			host.renewed = host.renewed.Add(-c.pause)
			host.mu.Unlock()
			c.entry(t, path)
			if c.lost {
				wantNoCreate(t, s, "a petstore on another machine serves it")
			} else {
				mustCreate(t, s, rex)
			}
			fileEngine(s).host.leave()
			fileEngine(s).host = nil // otherwise the connections would end with the process
			must(t, s.Close())
		}))
	}
}

// TestALinkInThePlaceOfAnEntryIsNotFollowed: root must not open what the folder's owner names.
func TestALinkInThePlaceOfAnEntryIsNotFollowed(t *testing.T) {
	path, target := madeDatabase(t), databasePath(t)
	writeText(t, target, "theirs")
	must(t, os.Symlink(target, path+"-host"))
	for _, mode := range []openMode{openToServe, openExisting} {
		wantNotOpened(t, path, mode, "pets.db-host is no regular file")
	}
	must(t, os.Remove(path+"-host"))
	synctest.Test(t, func(t *testing.T) {
		s := openDatabaseFor(t, path, openToServe)
		must(t, os.Remove(path+"-host"))
		must(t, os.Symlink(target, path+"-host"))
		time.Sleep(5 * time.Second)
		mustCreate(t, s, rex) // an entry that cannot be written stops nothing
		must(t, s.Close())
	})
	wantEqual(t, readText(t, target), "theirs", "what the link leads to")
}

// TestAServiceRenewsItsEntry every second, until it stops.
func TestAServiceRenewsItsEntry(t *testing.T) {
	path := madeDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabaseFor(t, path, openToServe)
		var first int64
		must(t, errorOf(fmt.Sscanf(readText(t, path+"-host"), "%d", &first)))
		wantEntry := func(count int64) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			want := fmt.Sprintf("%019d %s\n", count, bootID())
			wantEqual(t, readText(t, path+"-host"), want, "the entry")
		}
		for i := range int64(5) {
			wantEntry(first + i + 1)
		}
		must(t, os.Remove(path+"-host"))
		wantEntry(first + 6)
		// What a hand has written there is neither an entry nor its end.
		for _, odd := range []string{strings.Repeat("x y ", 75), strings.Repeat("\x00", 4096),
			readText(t, path+"-host") + "a note\n"} {
			writeText(t, path+"-host", odd)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			mustCreate(t, s, rex)
			line, _, _ := strings.Cut(readText(t, path+"-host"), "\n")
			wantPart(t, line, " "+bootID(), "the entry after ", odd[:4])
		}
		must(t, s.Close())
		wantMissing(t, path+"-host")
	})
}

// TestAServiceThatReadsTheEntryOfAnotherWritesNothingMore, and leaves the file, the log and the
// entry as they are: the other service uses them. What it has read may be old, but is shown.
func TestAServiceThatReadsTheEntryOfAnotherWritesNothingMore(t *testing.T) {
	for what, boot := range map[string]string{
		"another kernel":             otherBoot,
		"another mount of this one":  bootID(),
		"a kernel that tells no ids": "",
	} {
		path := madeDatabase(t)
		t.Run(what, bubble(func(t *testing.T) {
			s := openDatabaseFor(t, path, openToServe)
			mustCreate(t, s, rex)
			writeHost(t, path, boot, 7)
			time.Sleep(1001 * time.Millisecond)
			synctest.Wait()
			before := filesIn(t, filepath.Dir(path))
			log := readText(t, path+"-wal")
			wantNoCreate(t, s, "a petstore on another machine serves it")
			must(t, tryServiceLock(path)) // so that commands ask who serves
			wantIDs(t, s, 1)
			time.Sleep(10 * time.Second)
			wantNoCreate(t, s, "until this one is started again, it writes nothing more")
			must(t, s.Close())
			wantSameFiles(t, before, filesIn(t, filepath.Dir(path)))
			wantEqual(t, readText(t, path+"-wal"), log, "the log")
			wantEqual(t, readText(t, path+"-host"), fmt.Sprintf("%019d %s\n", 7, boot), "the entry")
			// Otherwise the connections would end with the process.
			fileEngine(s).host = nil
			must(t, s.Close())
		}))
	}
}

// TestAServiceThatCannotRenewItsEntryWritesNothing where locks may not be passed on: another one
// may take it for ended. Elsewhere it goes on.
func TestAServiceThatCannotRenewItsEntryWritesNothing(t *testing.T) {
	path := madeDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabaseFor(t, path, openToServe)
		host := path + "-host"
		entry := readText(t, host)
		for _, passesLocks := range []bool{true, false} {
			fileEngine(s).host.passesLocks = passesLocks
			must(t, os.Remove(host))
			must(t, os.Mkdir(host, 0o700)) // which cannot be opened for writing
			time.Sleep(5 * time.Second)
			if passesLocks {
				mustCreate(t, s, rex)
			} else {
				wantNoCreate(t, s, "another machine may serve it")
			}
			must(t, os.Remove(host))
			writeText(t, host, entry)
			mustCreate(t, s, rex)
		}
		must(t, s.Close())
	})
}

// TestAServiceTakesOverALogInANewFile: the service of another kernel may only be paused, and write
// to the old one when it wakes.
func TestAServiceTakesOverALogInANewFile(t *testing.T) {
	from, path := madeDatabase(t), databasePath(t)
	s := openDatabaseFor(t, from, openToServe)
	mustCreate(t, s, rex)
	for _, suffix := range []string{"", "-wal"} {
		writeText(t, path+suffix, readText(t, from+suffix))
	}
	must(t, s.Close())
	e := newSQLiteFile(path, "mode=ro", testLog)
	must(t, e.renewLog(t.Context()))
	wantMissing(t, path+"-wal")
	wantIDs(t, openDatabase(t, path), 1)
}

// TestOfTwoThatStartAtOnceOneServes: both have seen that there is no entry, or an old one.
func TestOfTwoThatStartAtOnceOneServes(t *testing.T) {
	path := madeDatabase(t)
	first, err := claimHost(path, true)
	must(t, err)
	other := &presence{path: path + "-host"}
	wantError(t, other.renew(true), errElsewhere, "the entry of a second")
	must(t, os.Remove(path+"-host")) // by the second one, which has seen an old entry there
	second, err := claimHost(path, true)
	must(t, err)
	wantError(t, first.renew(true), errElsewhere, "the renewal of the first")
	must(t, second.renew(true))
	first.leave()
	must(t, second.renew(true))
	second.leave()
	wantMissing(t, path+"-host")
}

// TestOfTwoThatMakeADatabaseAtOnceOneServes: the other one leaves the file where it is, although it
// is empty still, and was missing when that one started.
func TestOfTwoThatMakeADatabaseAtOnceOneServes(t *testing.T) {
	path := databasePath(t)
	synctest.Test(t, func(t *testing.T) {
		// The start watches an old entry, then waits for a lock. Meanwhile another one is first.
		writeHost(t, path, otherBoot, 7)
		lock := make(chan *sql.DB, 1)
		time.AfterFunc(hostWatch/2, func() {
			held, err := lockService(path)
			must(t, err)
			lock <- held
		})
		time.AfterFunc(hostWatch+lockPoll/2, func() {
			writeHost(t, path, otherBoot, 8)
			must(t, (<-lock).Close())
		})
		wantNotOpened(t, path, openToServe, "a petstore on another machine serves it")
		wantEqual(t, isMissing(path), false, "the database is removed")
		wantEqual(t, isMissing(path+"-lock"), false, "the lock is removed")
	})
}

// TestAServiceLooksOnceMoreBeforeItServes: another one may have removed its entry, which that one
// took for an old one, and have made its own.
func TestAServiceLooksOnceMoreBeforeItServes(t *testing.T) {
	path := madeDatabase(t)
	e := newSQLiteFile(path, "mode=ro", testLog)
	must(t, e.keepServicesOff(t.Context()))
	must(t, os.Remove(path+"-host"))
	writeHost(t, path, otherBoot, 8)
	wantError(t, e.connect(t.Context(), openToServe), errElsewhere, "the opening")
	e.host.leave()
	e.host = nil // otherwise the connections would end with the process
	must(t, e.Close())
	wantEqual(t, isMissing(path+"-host"), false, "the other's entry is removed")
}

// TestWhereThisKernelServesACommandWaitsForNothing: a loop of pet set. If the entry is another
// kernel's, it waits until the lock is known to be a service's, and no other command's.
func TestWhereThisKernelServesACommandWaitsForNothing(t *testing.T) {
	path := madeDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		s := openDatabaseFor(t, path, openToServe)
		mustCreate(t, s, rex)
		for boot, wait := range map[string]time.Duration{bootID(): 0, otherBoot: servedWait} {
			writeHost(t, path, boot, 7)
			for range 3 {
				wantOpened(t, path, openExisting, wait)
			}
		}
		must(t, os.Remove(path+"-host"))
		must(t, s.Close())
		wantOpened(t, path, openExisting, 0)
	})
}
