package main

// Tests of the commands that bring pets in and out.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// petsFile is a file with a content.
func petsFile(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pets.jsonl")
	mainMust(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// petsLines are pets with the numbers from first to last.
func petsLines(first, last int) string {
	var b strings.Builder
	for i := first; i <= last; i++ {
		fmt.Fprintf(&b, `{"name":"pet %d","categoryId":%d}`+"\n", i, -i)
	}
	return b.String()
}

// petsIn are all pets of a database, a line each, as export writes them.
func petsIn(t testing.TB, db string) string {
	t.Helper()
	out, _, err := mainRun(t, nil, "pet", "export", "-db", db)
	mainMust(t, err)
	return out
}

func TestImportTakesWhatCreatePetTakes(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		storeOpen(t, db)
		file := petsFile(t, "\ufeff{\"name\":\"Rex\",\"categoryId\":7}\r\n\n \t\r\n"+
			`  {"status" : "sold", "id" : 99, "name" : "x'41' \u00fc \"\\ \ud83d\ude00", "categoryId" : -9223372036854775808}`+"\n"+
			`{"id":{"any":["value"]},"name":"`+strings.Repeat("ü", 200)+`","categoryId":9223372036854775807,"status":"pending"}`)
		out, log, err := mainRun(t, nil, "pet", "import", "-db", db, file)
		mainMust(t, err)
		if out != "" || !strings.Contains(log, `"msg":"3 pets imported"`) || !strings.Contains(log, file) {
			t.Errorf("the import says %q and %q", out, log)
		}
		want := `{"id":1,"name":"Rex","categoryId":7,"status":"available"}` + "\n" +
			`{"id":2,"name":"x'41' ü \"\\ 😀","categoryId":-9223372036854775808,"status":"sold"}` + "\n" +
			`{"id":3,"name":"` + strings.Repeat("ü", 200) + `","categoryId":9223372036854775807,"status":"pending"}` + "\n"
		if got := petsIn(t, db); got != want {
			t.Errorf("stored is\n%s, not\n%s", got, want)
		}
	})
}

func TestAWrongLineStopsAnImportBeforeAnythingIsStored(t *testing.T) {
	for what, c := range map[string]struct{ line, want string }{
		"an unknown field":    {`{"name":"Rex","categoryId":1,"colour":"red"}`, `"colour": is unknown`},
		"nothing that counts": {`{"id":1}`, "name: is required; categoryId: is required"},
		"an id given twice":   {`{"id":1,"id":1,"name":"Rex","categoryId":1}`, "id: is given more than once"},
		"the id of a status":  {`{"ID":1,"name":"Rex","categoryId":1}`, `"ID": is unknown`},
		"two pets":            {strings.TrimSpace(petsLines(1, 1)) + petsLines(2, 2), "the body is not valid JSON: invalid character '{' after top-level value"},
		"an array":            {"[" + strings.TrimSpace(petsLines(1, 1)) + "]", "the body must be a JSON object with name and categoryId"},
		"a second mark":       {"\ufeff" + petsLines(1, 1), "the body is not valid JSON"},
		"no text":             {"\xff", "the body is not valid UTF-8"},
		"a space too long":    {strings.TrimSpace(petsLines(1, 1)) + strings.Repeat(" ", maxBody), "the line must have at most 65536 bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			db := mainMade(t)
			file := petsFile(t, petsLines(1, 3000)+"\n"+strings.TrimSuffix(c.line, "\n")+"\n"+petsLines(4000, 4000))
			_, log, err := mainRun(t, nil, "pet", "import", "-db", db, file)
			mainOneLine(t, err, false, file, "1 wrong line", "nothing was stored")
			if lines := strings.Split(log, "\n"); len(lines) != 2 || !strings.HasPrefix(lines[0], "line 3002: "+c.want) {
				t.Errorf("the line is reported as %q", log)
			}
			if got := petsIn(t, db); got != "" {
				t.Errorf("stored is %.100s", got)
			}
		})
	}
}

func TestALineMayBeAsLongAsABody(t *testing.T) {
	db := mainMade(t)
	line := strings.TrimSpace(petsLines(1, 1))
	line += strings.Repeat(" ", maxBody-len(line))
	for i, content := range []string{line + "\n", line, "\n" + line, line + "\n" + line + "\n"} {
		if _, log, err := mainRun(t, nil, "pet", "import", "-db", db, petsFile(t, content)); err != nil {
			t.Errorf("%d: %v, %s", i, err, log)
		}
	}
	if n := strings.Count(petsIn(t, db), "\n"); n != 5 {
		t.Errorf("%d pets are stored", n)
	}
}

// TestALineWithoutAnEndIsNotReadIntoMemory: the import fails, and says where it was.
func TestALineWithoutAnEndIsNotReadIntoMemory(t *testing.T) {
	db := mainMade(t)
	file := petsFile(t, petsLines(1, 3)+strings.Repeat(" ", 2<<20)+petsLines(4, 4))
	_, _, err := mainRun(t, nil, "pet", "import", "-db", db, file)
	mainOneLine(t, err, false, "line 4: ", "too long")
	if got := petsIn(t, db); got != "" {
		t.Errorf("stored is %.100s", got)
	}
}

func TestTheFirstTwentyWrongLinesAreShown(t *testing.T) {
	db := mainMade(t)
	_, log, err := mainRun(t, nil, "pet", "import", "-db", db, petsFile(t, strings.Repeat("{}\n", 1021)))
	mainOneLine(t, err, false, "1,021 wrong lines", "nothing was stored")
	if lines := strings.Split(log, "\n"); len(lines) != 21 || lines[19] != "line 20: name: is required; categoryId: is required" {
		t.Errorf("shown are %q", lines)
	}
}

func TestAFinishedImportIsRefusedWithoutAgain(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		storeOpen(t, db)
		imports := func(content string, flags ...string) (log string, err error) {
			_, log, err = mainRun(t, map[string]string{"PETSTORE_AGAIN": "true"}, slices.Concat([]string{"pet", "import", "-db", db}, flags, []string{petsFile(t, content)})...)
			return log, err
		}
		_, err := imports(petsLines(1, 5))
		mainMust(t, err)
		_, err = imports(petsLines(1, 5)) // under another name
		mainOneLine(t, err, false, "was imported before, all 5 pets", "-again")
		_, err = imports(petsLines(1, 6)) // another content
		mainMust(t, err)
		log, err := imports(petsLines(1, 5), "-again")
		if mainMust(t, err); !strings.Contains(log, `"msg":"5 pets imported"`) {
			t.Errorf("the second time it says %s", log)
		}
		_, err = imports(petsLines(1, 5))
		mainOneLine(t, err, false, "was imported before")
		if n := strings.Count(petsIn(t, db), "\n"); n != 16 {
			t.Errorf("%d pets are stored, want 16", n)
		}
	})
}

func TestAnImportOfNothing(t *testing.T) {
	db := mainMade(t)
	for range 2 {
		if _, log, err := mainRun(t, nil, "pet", "import", "-db", db, petsFile(t, "\r\n")); err != nil || !strings.Contains(log, "0 pets imported") {
			t.Errorf("%v, %s", err, log)
		}
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "no.jsonl"), t.TempDir()} {
		_, _, err := mainRun(t, nil, "pet", "import", "-db", db, name)
		mainOneLine(t, err, false, name)
	}
}

// TestStdinIsImported, and known by its content as a file is. No copy of it stays.
func TestStdinIsImported(t *testing.T) {
	db, temp := mainMade(t), t.TempDir()
	t.Setenv("TMPDIR", temp)
	args := []string{"pet", "import", "-db", db, "-"}
	var log bytes.Buffer
	mainMust(t, run(t.Context(), args, nil, iotest.OneByteReader(strings.NewReader(petsLines(1, 1500))), io.Discard, &log))
	if !strings.Contains(log.String(), `"msg":"1,500 pets imported"`) {
		t.Errorf("it says %s", &log)
	}
	_, _, err := mainRun(t, nil, "pet", "import", "-db", db, petsFile(t, petsLines(1, 1500)))
	mainOneLine(t, err, false, "was imported before")
	err = run(t.Context(), args, nil, io.MultiReader(strings.NewReader(petsLines(1, 1)), iotest.ErrReader(syscall.EIO)), io.Discard, io.Discard)
	mainOneLine(t, err, false, syscall.EIO.Error())
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("in the folder for temporary files stays %v, %v", left, err)
	}
}

// TestAStopEndsACommandThatWaitsForAPipe, which nobody writes or reads.
func TestAStopEndsACommandThatWaitsForAPipe(t *testing.T) {
	db := mainMade(t)
	storeCreate(t, storeOpen(t, db), NewPet{"Rex", 1, Sold})
	nobody, never := io.Pipe()
	defer never.Close()
	defer nobody.Close()
	for _, args := range [][]string{{"pet", "import", "-db", db, "-"}, {"pet", "export", "-db", db}} {
		ctx, cancel := context.WithCancel(t.Context())
		stops := petsStream{func() { cancel() }, nobody, never}
		err := run(ctx, args, nil, stops, stops, io.Discard)
		mainOneLine(t, err, false, "stopped by a signal", "context canceled")
	}
}

// petsStream calls a function before it is read or written for the first time.
type petsStream struct {
	before func()
	r      io.Reader
	w      io.Writer
}

func (s petsStream) Read(b []byte) (int, error)  { s.before(); return s.r.Read(b) }
func (s petsStream) Write(b []byte) (int, error) { s.before(); return s.w.Write(b) }

// petsImport is an import on an observed store.
func petsImport(t testing.TB, s *store, file string, check func(st statement)) (*invocation, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	observed := newStore(&storeEngine{engine: s.engine, check: func(st statement, _ []any) { check(st) }})
	c, err := commandsInvocation("pet import", []string{file})
	mainMust(t, err)
	c.stderr, c.store, c.log = &log, observed, newLogger(&log, "text", 0)
	return c, &log
}

// TestAnImportThatWasStoppedGoesOn, wherever that was, and nothing is stored twice or in another order.
func TestAnImportThatWasStoppedGoesOn(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := storeOpen(t, db)
		file := petsFile(t, petsLines(1, 5001))
		for round := 1; ; round++ {
			stop := round // this transaction is cancelled
			ctx, cancel := context.WithCancel(t.Context())
			c, log := petsImport(t, s, file, func(st statement) {
				if strings.HasPrefix(st.query, "INSERT INTO pets") {
					if stop--; stop == 0 {
						cancel()
					}
				}
			})
			before := storeCount(t, s)
			err := petImport(ctx, c)
			cancel()
			if err == nil {
				want := amount(5001-before, "pets") + " imported, which ends an import that was stopped"
				if !strings.Contains(log.String(), want) || before == 0 {
					t.Errorf("the last says %s, not %s", log, want)
				}
				break
			}
			after := storeCount(t, s)
			if stored := amount(after, "") + "of 5,001 pets are stored; the same import goes on after them"; !strings.HasPrefix(err.Error(), stored) {
				t.Errorf("a stop says %v, and stored are %d", err, after)
			}
		}
		if err := petImport(t.Context(), petsAgain(t, s, file, nil)); err == nil {
			t.Error("when it has ended it is not refused")
		}
		petsCheck(t, db, 5001)
	})
}

// petsAgain is an import with flags.
func petsAgain(t testing.TB, s *store, file string, flags []string) *invocation {
	t.Helper()
	c, _ := petsImport(t, s, file, func(statement) {})
	mainMust(t, c.Parse(append(flags, file)))
	return c
}

// petsCheck checks that the pets of petsLines are stored once, in their order.
func petsCheck(t testing.TB, db string, n int) {
	t.Helper()
	var want strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&want, `{"id":%d,"name":"pet %[1]d","categoryId":-%[1]d,"status":"available"}`+"\n", i)
	}
	if got := petsIn(t, db); got != want.String() {
		t.Errorf("stored are %d lines, %.200q…, want %d", strings.Count(got, "\n"), got, n)
	}
}

// petsDigest is what an import of a content is known by.
func petsDigest(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// TestAgainFinishesWhatWasStopped, and adds nothing twice.
func TestAgainFinishesWhatWasStopped(t *testing.T) {
	db := storePath(t)
	s, content := storeOpen(t, db), petsLines(1, 5)
	storeMust(t, s.importPets(t.Context(), petsDigest(content), []string{`[-1,2,"pet 1"]`, `[-2,2,"pet 2"]`}, 0, 2))
	_, log, err := mainRun(t, nil, "pet", "import", "-db", db, "-again", petsFile(t, content))
	if mainMust(t, err); !strings.Contains(log, "3 pets imported, which ends an import that was stopped") {
		t.Errorf("it says %s", log)
	}
	petsCheck(t, db, 5)
}

// TestTwoImportsOfOneContentCannotBothGoOn: the one that finds another's pets ends, and none is there twice.
func TestTwoImportsOfOneContentCannotBothGoOn(t *testing.T) {
	for what, again := range map[string][]string{"the first time": nil, "again": {"-again"}} {
		t.Run(what, func(t *testing.T) {
			engines(t, func(t *testing.T, db string) {
				s, content := storeOpen(t, db), petsLines(1, 600)
				file, before := petsFile(t, content), int64(0)
				if again != nil {
					mainMust(t, petImport(t.Context(), petsAgain(t, s, file, nil)))
					before = 600
				}
				// An import that begins anew has moved the place to the start when it stores its first pets.
				theirs := slices.Repeat([]string{`[1,4,"theirs"]`}, 10)
				c, _ := petsImport(t, s, file, func(st statement) {
					if strings.HasPrefix(st.query, "INSERT INTO pets") {
						mainMust(t, s.importPets(t.Context(), petsDigest(content), theirs, 0, 10))
					}
				})
				mainMust(t, c.Parse(append(again, file)))
				err := petImport(t.Context(), c)
				mainOneLine(t, err, false, "0 of 600 pets are stored", "another import of the same content is under way")
				if n, err := s.imported(t.Context(), petsDigest(content)); n != 10 || err != nil || storeCount(t, s) != before+10 {
					t.Errorf("%d pets of the import are noted, %v, and %d more are stored", n, err, storeCount(t, s)-before)
				}
			})
		})
	}
}

// TestAnImportGoesOnAfterAnUnknownOutcome, be it that the pets were stored or not.
func TestAnImportGoesOnAfterAnUnknownOutcome(t *testing.T) {
	for what, stored := range map[string]bool{"they were stored": true, "they were not": false} {
		t.Run(what, func(t *testing.T) {
			fake := rqliteNew(t, 3)
			s, _ := rqliteOpen(t, fake, forNewKey)
			times := 0
			c, _ := petsImport(t, s, petsFile(t, petsLines(1, 1000)), func(st statement) {
				if !strings.HasPrefix(st.query, "INSERT INTO pets") {
					return
				}
				if times++; times == 2 {
					rqliteOnce(fake, func(n *rqliteNode, _ http.ResponseWriter, r *http.Request) {
						if stored {
							fake.mu.Lock()
							defer fake.mu.Unlock()
							n.serve(httptest.NewRecorder(), r)
						}
						panic(http.ErrAbortHandler)
					})
				}
			})
			mainMust(t, petImport(t.Context(), c))
			petsCheck(t, fake.addresses(), 1000)
		})
	}
}

// TestAgainStoresNothingTwiceAfterAnUnknownOutcome of any of its transactions, be it that it was stored or not.
func TestAgainStoresNothingTwiceAfterAnUnknownOutcome(t *testing.T) {
	for lost := 1; lost <= 2; lost++ {
		for what, stored := range map[string]bool{"stored": true, "not stored": false} {
			t.Run(fmt.Sprintf("transaction %d, %s", lost, what), func(t *testing.T) {
				fake := rqliteNew(t, 3)
				s, _ := rqliteOpen(t, fake, forNewKey)
				file := petsFile(t, petsLines(1, 2))
				mainMust(t, petImport(t.Context(), petsAgain(t, s, file, nil)))
				writes := 0
				fake.when(func(n *rqliteNode, _ http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/db/request" && r.URL.Path != "/db/execute" {
						return false
					}
					if writes++; writes != lost {
						return false
					}
					if stored {
						fake.mu.Lock()
						defer fake.mu.Unlock()
						n.serve(httptest.NewRecorder(), r)
					}
					panic(http.ErrAbortHandler)
				})
				mainMust(t, petImport(t.Context(), petsAgain(t, s, file, []string{"-again"})))
				if n := storeCount(t, s); n != 4 || writes != 3 {
					t.Errorf("after %d transactions %d pets are stored, want 4 after 3", writes, n)
				}
			})
		}
	}
}

// TestOneOfTwoAgainsAtOnceEnds: the second one finds the round of the first one, and takes it over.
func TestOneOfTwoAgainsAtOnceEnds(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s, file := storeOpen(t, db), petsFile(t, petsLines(1, 2))
		mainMust(t, petImport(t.Context(), petsAgain(t, s, file, nil)))
		first, _ := petsImport(t, s, file, func(st statement) {
			if strings.HasPrefix(st.query, "INSERT INTO pets") {
				mainMust(t, petImport(t.Context(), petsAgain(t, s, file, []string{"-again"})))
			}
		})
		mainMust(t, first.Parse([]string{"-again", file}))
		err := petImport(t.Context(), first)
		mainOneLine(t, err, false, "another import of the same content is under way")
		if n := storeCount(t, s); n != 4 {
			t.Errorf("%d pets are stored, want 4", n)
		}
	})
}

// TestAnImportWhosePlaceIsMovedMeanwhileFails, also if it is its last transaction, and nobody knows what became of that.
func TestAnImportWhosePlaceIsMovedMeanwhileFails(t *testing.T) {
	fake := rqliteNew(t, 3)
	s, _ := rqliteOpen(t, fake, forNewKey)
	content, tries := petsLines(1, 2), 0
	c, _ := petsImport(t, s, petsFile(t, content), func(st statement) {
		if !strings.HasPrefix(st.query, "INSERT INTO pets") {
			return
		}
		if tries++; tries == 1 {
			rqliteOnce(fake, func(*rqliteNode, http.ResponseWriter, *http.Request) {
				fake.exec("INSERT OR REPLACE INTO counters (name, value) VALUES ('import " + petsDigest(content) + "', 1)")
				panic(http.ErrAbortHandler)
			})
		}
	})
	err := petImport(t.Context(), c)
	mainOneLine(t, err, false, "0 of 2 pets are stored", "another import of the same content is under way")
	if n := storeCount(t, s); n != 0 || tries != 2 {
		t.Errorf("after %d tries %d pets are stored, want none after 2", tries, n)
	}
}

// TestAnImportLeavesRoomForOthers: after each transaction it lets them write for as long as that took.
func TestAnImportLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storeNew(t)
		start := time.Now()
		var begun []time.Duration
		var sizes []int
		c, _ := petsImport(t, s, petsFile(t, petsLines(1, 2*importBatch+1)), func(st statement) {
			if strings.HasPrefix(st.query, "INSERT INTO pets") {
				begun = append(begun, time.Since(start))
				sizes = append(sizes, strings.Count(st.args[0].(string), "\"")/2)
				time.Sleep(time.Duration(len(sizes)) * 10 * time.Millisecond) // so long it takes
			}
		})
		mainMust(t, petImport(t.Context(), c))
		want := []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond}
		if !slices.Equal(begun, want) || !slices.Equal(sizes, []int{importBatch, importBatch, 1}) {
			t.Errorf("transactions of %v pets begin after %v, want %v", sizes, begun, want)
		}
	})
}

func TestExportFiltersByStatus(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := storeOpen(t, db)
		for i, status := range []PetStatus{Sold, Available, Pending, Sold} {
			storeCreate(t, s, NewPet{"Rex", int64(i), status})
		}
		out, log, err := mainRun(t, nil, "pet", "export", "-db", db, "-status", "sold", "-") // - is stdout
		mainMust(t, err)
		want := `{"id":1,"name":"Rex","categoryId":0,"status":"sold"}` + "\n" + `{"id":4,"name":"Rex","categoryId":3,"status":"sold"}` + "\n"
		if out != want || !strings.Contains(log, `"msg":"2 pets exported"`) {
			t.Errorf("exported is %q, and the log says %s", out, log)
		}
	})
}

// TestAnExportIsWhole on a cluster too, which is asked several times, and it can be imported.
func TestAnExportIsWhole(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := storeOpen(t, db)
		_, err := s.write(t.Context(), sqlOf(`INSERT INTO pets (category_id, status, name)
			SELECT -value, 2 + value % 3, 'pet ' || value FROM generate_series(1, 20000)`))
		if err != nil { // there is no such function
			_, err = s.write(t.Context(), sqlOf(`WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 20000)
				INSERT INTO pets (category_id, status, name) SELECT -value, 2 + value % 3, 'pet ' || value FROM n`))
		}
		mainMust(t, err)
		file := filepath.Join(t.TempDir(), "all.jsonl")
		_, log, err := mainRun(t, nil, "pet", "export", "-db", db, file)
		if mainMust(t, err); !strings.Contains(log, "20,000 pets exported") {
			t.Errorf("it says %s", log)
		}
		content, err := os.ReadFile(file)
		if mainMust(t, err); petsIn(t, db) != string(content) {
			t.Error("stdout gets another text than a file")
		}
		copied := mainMade(t)
		_, _, err = mainRun(t, nil, "pet", "import", "-db", copied, file)
		if mainMust(t, err); petsIn(t, copied) != string(content) {
			t.Error("what was imported is not what was exported")
		}
	})
}

// TestAnExportOfAFileIsOneMoment: it lacks what is added meanwhile, and has what is deleted.
func TestAnExportOfAFileIsOneMoment(t *testing.T) {
	s := storeNew(t)
	for range 3 {
		storeCreate(t, s, NewPet{"Rex", 1, Sold})
	}
	var pets []string
	mainMust(t, s.eachPetJSON(t.Context(), "", func(pet string) error {
		if pets = append(pets, pet); len(pets) == 1 {
			storeCreate(t, s, NewPet{"Max", 1, Sold})
			_, err := s.edit(t.Context(), sqlOf("DELETE FROM pets WHERE id = ?", "2"))
			mainMust(t, err)
		}
		return nil
	}))
	if len(pets) != 3 || !strings.HasPrefix(pets[1], `{"id":2,`) {
		t.Errorf("exported is %q", pets)
	}
}

// TestAnExportThatFailsLeavesNoHalfFile, nor does it lose the one that was there.
func TestAnExportThatFailsLeavesNoHalfFile(t *testing.T) {
	db := mainMade(t)
	storeCreate(t, storeOpen(t, db), NewPet{"Rex", 1, Sold})
	file := petsFile(t, "before")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := petsAgain(t, storeOpen(t, db), file, nil)
	if err := petExport(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("it says %v", err)
	}
	content, err := os.ReadFile(file)
	left, _ := filepath.Glob(file + "*")
	if string(content) != "before" || err != nil || len(left) != 1 {
		t.Errorf("the file holds %q, %v, and there are %v", content, err, left)
	}
	for _, target := range []string{db, db + "-wal", os.DevNull} {
		_, _, err := mainRun(t, nil, "pet", "export", "-db", db, target)
		mainOneLine(t, err, false, "cannot export the pets of "+db, target)
	}
	err = run(t.Context(), []string{"pet", "export", "-db", db}, nil, nil, mainFull{}, io.Discard)
	mainOneLine(t, err, false, "cannot export the pets of "+db, syscall.ENOSPC.Error())
}

func TestPetSetAndDelete(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := storeOpen(t, db)
		storeOnce(t, s, 1, "Rex", storeNow)
		storeOnce(t, s, 2, "Max", storeNow)
		reads := func(want string) {
			t.Helper()
			storeMust(t, s.refresh(t.Context())) // the service looks four times a second
			pet, err := s.pet(1)
			storeMust(t, err)
			_, page := storeIDs(t, s, "", 1, 0)
			if string(pet.body) != want || string(page.body) != "["+want+"]" {
				t.Errorf("the pet is %s and the page %s, want %s", pet.body, page.body, want)
			}
		}
		reads(`{"id":1,"name":"Rex","categoryId":1,"status":"available"}`)
		for _, c := range []struct {
			flags []string
			want  string
		}{
			{[]string{"-status", "sold"}, `{"id":1,"name":"Rex","categoryId":1,"status":"sold"}`},
			{[]string{"-name", `x'41' "`}, `{"id":1,"name":"x'41' \"","categoryId":1,"status":"sold"}`},
			{[]string{"-category", "0"}, `{"id":1,"name":"x'41' \"","categoryId":0,"status":"sold"}`},
			{[]string{"-category", "-9223372036854775808", "-name", "Tom", "-status", "pending"}, `{"id":1,"name":"Tom","categoryId":-9223372036854775808,"status":"pending"}`},
		} {
			_, log, err := mainRun(t, nil, slices.Concat([]string{"pet", "set", "-db", db}, c.flags, []string{"1"})...)
			if mainMust(t, err); !strings.Contains(log, `"msg":"pet changed","id":"1"`) {
				t.Errorf("the change is logged as %s", log)
			}
			reads(c.want)
		}
		if id, verdict := storeOnce(t, s, 1, "Rex", storeNow); id != 1 || verdict != "replayed" {
			t.Errorf("a repeat of the create is %s %d", verdict, id)
		}
		_, log, err := mainRun(t, nil, "pet", "delete", "-db", db, "2")
		if mainMust(t, err); !strings.Contains(log, `"msg":"pet deleted","id":"2"`) {
			t.Errorf("the deletion is logged as %s", log)
		}
		storeMust(t, s.refresh(t.Context()))
		if ids, _ := storeIDs(t, s, "", 20, 0); !slices.Equal(ids, []int64{1}) {
			t.Errorf("after the deletion there are %v", ids)
		}
		if id, verdict := storeOnce(t, s, 2, "Max", storeNow); id != 2 || verdict != "replayed" {
			t.Errorf("a repeat of the create of what was deleted is %s %d", verdict, id)
		}
		if id := storeCreate(t, s, NewPet{"Kim", 1, Sold}); id != 3 {
			t.Errorf("the next id is %d", id)
		}
		for _, id := range []string{"2", "99", "0", "-1", "01", "+1", " 1", "1.0", "1e0", "Rex", "9223372036854775808", ""} {
			for _, args := range [][]string{{"pet", "delete", "-db", db}, {"pet", "set", "-db", db, "-status", "sold"}} {
				_, _, err := mainRun(t, nil, append(args, "--", id)...)
				mainOneLine(t, err, false, "no pet has the id "+id)
			}
		}
	})
}

// BenchmarkImport imports a million pets, beside a service that is idle.
func BenchmarkImport(b *testing.B) {
	const pets = 1_000_000
	file := petsFile(b, petsLines(1, pets))
	for b.Loop() {
		db := mainMade(b)
		storeOpen(b, db)
		_, _, err := mainRun(b, nil, "pet", "import", "-db", db, file)
		mainMust(b, err)
	}
	b.ReportMetric(pets*float64(b.N)/b.Elapsed().Seconds(), "pets/s")
}
