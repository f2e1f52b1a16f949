package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// TestPetSetAndDelete beside a service, which follows, as does pet show. Repeats of creates get
// their first responses still.
func TestPetSetAndDelete(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		creates := map[int64]string{1: "Rex", 2: "Max"}
		createOnce(t, s, 1, creates[1], testTime)
		createOnce(t, s, 2, creates[2], testTime)
		for _, c := range []struct{ flags, want string }{
			{"-status sold", `{"id":1,"name":"Rex","categoryId":1,"status":"sold"}`},
			{`-name x'41'"`, `{"id":1,"name":"x'41'\"","categoryId":1,"status":"sold"}`},
			{"-category 0", `{"id":1,"name":"x'41'\"","categoryId":0,"status":"sold"}`},
			{
				"-category -9223372036854775808 -name Tom -status pending",
				`{"id":1,"name":"Tom","categoryId":-9223372036854775808,"status":"pending"}`,
			},
		} {
			mustSay(t, db, "pet set "+c.flags+" 1", `"msg":"pet changed","id":1`)
			must(t, s.refresh(t.Context())) // as the service does four times a second
			pet, err := s.pet(1)
			must(t, err)
			_, page := pageIDs(t, s, "", 1, 0)
			wantEqual(t, string(pet.body), c.want, "the pet")
			wantEqual(t, mustSay(t, db, "pet show 1"), c.want+"\n", "what pet show prints")
			wantEqual(t, string(page.body), "["+c.want+"]", "the page")
		}
		mustSay(t, db, "pet delete 2", `"msg":"pets deleted","pets":1,"ids":"2"`)
		must(t, s.refresh(t.Context()))
		wantIDs(t, s, 1)
		for keyID, body := range creates {
			wantEqual(t, createOnce(t, s, keyID, body, testTime), fmt.Sprint("replayed ", keyID),
				"a repeat of the create of ", body)
		}
		wantNextID(t, s, 3)
	})
}

// TestPetsAreDeletedAllOrNone that arguments or stdin name, in one transaction.
func TestPetsAreDeletedAllOrNone(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		for range 30 {
			mustCreate(t, s, rex)
		}
		var log logBuffer
		removeLines := func(ids string) error {
			args := []string{"pet", "delete", "-db", db, "-"}
			return run(t.Context(), args, nil, strings.NewReader(ids), io.Discard, &log)
		}
		var unknown []string
		for id := range 25 {
			unknown = append(unknown, fmt.Sprint(id+31))
		}
		for ids, want := range map[string]string{
			"1 31 2 31":                      "no pet has the id 31",
			"31 1 01 a_b":                    "no pet has the id 01, 31, a_b",
			strings.Repeat("1 ", 600) + "31": "no pet has the id 31",
			strings.Join(unknown, " ") + " 1": "no pet has the id " +
				strings.Join(unknown[:20], ", ") + ", and 5 more",
		} {
			mustFail(t, db, "pet delete "+ids, false, want)
			lines := strings.ReplaceAll(ids, " ", "\r\n") + "\n \n"
			wantOneLine(t, removeLines(lines), false, want)
		}
		wantOneLine(t, removeLines("\n \n"), false, "stdin names no pet")
		wantPets(t, s, 30)
		mustSay(t, db, "pet delete 1 2 1", `"pets":2,"ids":"1 2 1"`)
		must(t, removeLines("\ufeff3\n\n4\r\n5"))
		wantPart(t, log.String(), `"pets":3,"ids":"-"`, "the log")
		wantPets(t, s, 25)
		if edits := readNumber(t, s, editsQuery); edits < 2 {
			t.Errorf("%d edits are counted", edits)
		}
	})
}

// TestALargeDeleteLooksForItsPetsBeforeItTakesTheLock, while which creates wait: in its transaction
// it only deletes, and counts the edit.
func TestALargeDeleteLooksForItsPetsBeforeItTakesTheLock(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustImport(t, db, petLines(2500))
		var ids []string
		for id := range 2500 {
			ids = append(ids, fmt.Sprint(id+1))
		}
		var sent []string
		note := func(st statement, columns []any) {
			if columns == nil {
				sent = append(sent, strings.Fields(st.query)[0])
			}
		}
		watched := storeOn(&watchedEngine{s.engine, note})
		must(t, onStore(t, watched, io.Discard, "pet delete "+strings.Join(ids, " ")))
		wantEqual(t, strings.Join(sent, " "), "SELECT SELECT SELECT SELECT DELETE UPDATE",
			"what is sent")
		wantPets(t, s, 0)
	})
}

// TestAnImportTellsTheIDsItGave, and none that were given to others meanwhile.
func TestAnImportTellsTheIDsItGave(t *testing.T) {
	three := result{lastID: 4, affected: 3}
	next := result{lastID: 6, affected: 2}
	later := result{lastID: 9, affected: 2}
	for want, results := range map[string][]result{
		"2 to 4":         {three},
		"2 to 6":         {three, next},
		"2 to 6, 8 to 9": {three, next, later},
		"unknown":        {three, {}},
	} {
		var ids idRuns
		for _, inserted := range results {
			ids.addInserted(inserted)
		}
		wantEqual(t, ids.String(), want, "what is told of the ids")
	}
}

// TestAnotherFormThanLinesIsNamed, with what makes lines of it.
func TestAnotherFormThanLinesIsNamed(t *testing.T) {
	db := madeDatabase(t)
	for content, want := range map[string]string{
		"\ufeff \n[{\"name\":\"Rex\"}]": "jq -c '.[]' makes lines of a JSON array",
		"name,categoryId\nRex,1\n":      "jq -Rc 'split(\",\")",
		"{\"name\":\"Rex\",\"id\":1}":   "nothing was stored",
		"\x1f\x8b\x08\x00\x00":          "it is compressed: gzip -dc",
		"\xff\xfe{\x00\"\x00n\x00":      "it is UTF-16",
		"\xfe\xff\x00{\x00\"\x00n":      "it is UTF-16",
		"SQLite format 3\x00\x10\x00":   "it is a database: petstore pet export",
	} {
		_, err := importContent(t, db, content)
		wantOneLine(t, err, false, "nothing was stored", want)
		if want == "nothing was stored" && strings.Contains(err.Error(), "jq") {
			t.Errorf("of lines it says %v", err)
		}
	}
}

// TestANameThatIsRefusedTodayStays, where it is stored already: it is shown and exported, and only
// imported no more.
func TestANameThatIsRefusedTodayStays(t *testing.T) {
	k := newKeys(t)
	s := openDatabase(t, k.db)
	mustCreate(t, s, NewPet{Name: "\u200b\u2800", CategoryID: 1, Status: Sold})
	const line = `{"id":1,"name":"` + "\u200b\u2800" + `","categoryId":1,"status":"sold"}`
	got, shown := exportedPets(t, k.db), mustSay(t, k.db, "pet show 1")
	if got != line+"\n" || shown != got {
		t.Errorf("exported is %q, and shown %q", got, shown)
	}
	log, err := importContent(t, k.db, line)
	wantOneLine(t, err, false, "nothing was stored")
	wantEqual(t, log, "line 1: name: must not be blank\n", "what the import says")
	mustInsertKey(t, s, apiKey{Name: "till\u200f"})
	k.story("rotate 1\n" +
		"1 name=till\u200f\n" +
		"2 name=till\u200f")
}

// petsFile is a file with a content.
func petsFile(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pets.jsonl")
	writeText(t, file, content)
	return file
}

// petLines are so many pets.
func petLines(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, `{"name":"pet %d","categoryId":%d}`+"\n", i, -i)
	}
	return b.String()
}

// rowOf is a pet as importPets takes it.
func rowOf(pet NewPet) string { return string(pet.row()) }

// importContent runs petstore pet import.
func importContent(t testing.TB, db, content string) (log string, err error) {
	t.Helper()
	_, log, err = petstore(t, nil, "pet", "import", "-db", db, petsFile(t, content))
	return log, err
}

// mustImport is an import that must succeed and say the words.
func mustImport(t testing.TB, db, content string, words ...string) {
	t.Helper()
	mustSay(t, db, "pet import "+petsFile(t, content), words...)
}

// wantImportedBefore checks that an import is refused, and tells which ids it gave, as runs.
func wantImportedBefore(t testing.TB, db, file, pets string, runs ...string) {
	t.Helper()
	printed, _, err := petstore(t, nil, "pet", "import", "-db", db, file)
	wantOneLine(t, err, false, "it was imported before, all "+pets+" pets, with the ids "+
		strings.Join(runs, ", ")+"; -again adds them once more")
	wantEqual(t, printed, strings.Join(runs, "\n")+"\n", "what it prints")
}

// wantImported checks that petLines are stored once, in their order.
func wantImported(t testing.TB, db string, pets int) {
	t.Helper()
	var want strings.Builder
	for i := 1; i <= pets; i++ {
		fmt.Fprintf(&want, `{"id":%d,"name":"pet %[1]d","categoryId":-%[1]d,`+
			`"status":"available"}`+"\n", i)
	}
	if got := exportedPets(t, db); got != want.String() {
		lines := strings.Count(got, "\n")
		t.Errorf("stored are %d pets, %.200q…, want %d", lines, got, pets)
	}
}

// digestOf is what the import of a content is known by.
func digestOf(content string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(content)))
}

func TestImportTakesWhatCreatePetTakes(t *testing.T) {
	long := strings.Repeat("ü", 200)
	first := `{"name":"Rex","categoryId":7}`
	first += strings.Repeat(" ", maxBody-len(first)) // the byte order mark does not count
	content := "\ufeff" + first + "\r\n\n \t\r\n" +
		`  {"status" : "sold", "id" : 99, "name" : "x'41' \u00fc \"\\ \ud83d\ude00",` +
		` "categoryId" : -9223372036854775808}` + "\n" +
		`{"id":{"any":1},"name":"` + long + `","categoryId":9223372036854775807}`
	want := `{"id":1,"name":"Rex","categoryId":7,"status":"available"}
{"id":2,"name":"x'41' ü \"\\ 😀","categoryId":-9223372036854775808,"status":"sold"}
{"id":3,"name":"` + long + `","categoryId":9223372036854775807,"status":"available"}
`
	engines(t, func(t *testing.T, db string) {
		openDatabase(t, db)
		mustImport(t, db, content, `"msg":"pets imported","pets":3`, `"ids":"1 to 3"`)
		wantEqual(t, exportedPets(t, db), want, "what is stored")
	})
}

// TestAWrongLineStopsAnImportBeforeAnythingIsStored. The first twenty wrong lines are shown.
func TestAWrongLineStopsAnImportBeforeAnythingIsStored(t *testing.T) {
	pet := strings.TrimSpace(petLines(1))
	twenty := ""
	for line := range 20 {
		twenty += fmt.Sprintf("line %d: name: is required; categoryId: is required\n", line+1)
	}
	for content, want := range map[string]string{
		strings.Repeat("{}\n", 1000):                    twenty,
		petLines(3000) + "\n" + `{"id":1}` + "\n" + pet: "line 3002: name: is required",
		`{"name":"Rex","categoryId":1,"colour":"red"}`:  `line 1: "colour": is unknown`,
		`{"id":1,"id":1,"name":"Rex","categoryId":1}`:   "line 1: id: is given more than once",
		"\n\ufeff" + pet: "line 2: the body is not valid JSON",
	} {
		db := madeDatabase(t)
		log, err := importContent(t, db, content)
		wantOneLine(t, err, false, "pets.jsonl has wrong lines; nothing was stored")
		lines := max(1, strings.Count(want, "\n"))
		if !strings.HasPrefix(log, want) || strings.Count(log, "\n") != lines {
			t.Errorf("of %.50q it is said: %q", content, log)
		}
		wantImported(t, db, 0)
	}
}

// TestALineMayBeAsLongAsABody, and a longer one is not read into memory.
func TestALineMayBeAsLongAsABody(t *testing.T) {
	db := madeDatabase(t)
	line := strings.TrimSpace(petLines(1))
	line += strings.Repeat(" ", maxBody-len(line))
	_, err := importContent(t, db, line+"\r\n"+line)
	must(t, err)
	_, err = importContent(t, db, petLines(3)+line+"   \n")
	wantOneLine(t, err, false, "line 4: ", "too long")
	wantPets(t, openDatabase(t, db), 2)
}

func TestAFinishedImportIsRefusedWithoutAgain(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		first, same := petsFile(t, petLines(5)), petsFile(t, petLines(5))
		mustSay(t, db, "pet import "+first)
		wantImportedBefore(t, db, same, "5", "1 to 5")
		mustImport(t, db, petLines(6))
		mustSay(t, db, "pet import -again "+same, `"msg":"pets imported","pets":5`)
		wantImportedBefore(t, db, first, "5", "12 to 16")
		wantPets(t, s, 16)
	})
}

func TestAnImportOfNothing(t *testing.T) {
	db := madeDatabase(t)
	for range 2 {
		mustImport(t, db, "\r\n", `"msg":"pets imported","pets":0`)
	}
	mustFail(t, db, "pet import missing.jsonl", false, "missing.jsonl")
}

// TestStdinIsImported, and known by its content as a file is. No copy of it stays.
func TestStdinIsImported(t *testing.T) {
	db, temporary := madeDatabase(t), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	content := petLines(1500)
	importFrom := func(stdin io.Reader) error {
		args := []string{"pet", "import", "-db", db, "-"}
		return run(t.Context(), args, nil, stdin, io.Discard, io.Discard)
	}
	must(t, importFrom(iotest.OneByteReader(strings.NewReader(content))))
	wantImported(t, db, 1500)
	wantImportedBefore(t, db, petsFile(t, content), "1500", "1 to 1500")
	torn := io.MultiReader(strings.NewReader(petLines(1)), iotest.ErrReader(syscall.EIO))
	wantOneLine(t, importFrom(torn), false, syscall.EIO.Error())
	wantNames(t, temporary)
}

// startWaiting runs a command until it waits for stdin or stdout, and returns what stops it. Call
// it inside a synctest bubble.
func startWaiting(t testing.TB, line string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe() // nobody else writes or reads
	t.Cleanup(func() {
		_ = reader.Close()
		_ = writer.Close()
	})
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, strings.Fields(line), nil, reader, writer, io.Discard)
	}()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

// TestAStopEndsACommandThatWaitsForAPipe, which nobody writes or reads.
func TestAStopEndsACommandThatWaitsForAPipe(t *testing.T) {
	db := madeDatabase(t)
	mustCreate(t, openDatabase(t, db), rex)
	for _, line := range []string{
		"pet import -", "pet export", "key list", "key usage -json",
	} {
		synctest.Test(t, func(t *testing.T) {
			stop := startWaiting(t, line+" -db "+db)
			wantOneLine(t, stop(), false, "stopped by a signal", "context canceled")
		})
	}
}

func TestAfterAStopNothingIsPrinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		var out bytes.Buffer
		err := run(ctx, []string{"help"}, nil, nil, &out, io.Discard)
		synctest.Wait()
		if out.Len() > 0 || err == nil {
			t.Errorf("it prints %q, %v", &out, err)
		}
	})
}

// commandOn is a command on an engine, whose statements are seen by check.
func commandOn(t testing.TB, e engine, line string, check func(statement, []any)) *invocation {
	t.Helper()
	words := strings.Fields(line)
	c, err := parseCommand(words[0]+" "+words[1], words[2:])
	must(t, err)
	c.stdout, c.stderr = io.Discard, &bytes.Buffer{}
	c.log = newLogger(c.stderr, "text", 0)
	c.store = storeOn(&watchedEngine{e, check})
	return c
}

// newImport is an import into a store. beforePets is called before each transaction that is to add
// pets, with their number.
func newImport(t testing.TB, s *store, content string, beforePets func(pets int),
	flags ...string) *invocation {
	t.Helper()
	line := "pet import " + petsFile(t, content) + " " + strings.Join(flags, " ")
	return commandOn(t, s.engine, line, func(st statement, _ []any) {
		if !strings.HasPrefix(st.query, "INSERT INTO pets") {
			return
		}
		pets := strings.Count(st.args[0].(string), "[") - 1
		if pets > 0 {
			beforePets(pets)
		}
	})
}

func ignorePets(int) {}

// TestAnImportThatWasStoppedGoesOn, wherever that was, also with -again, and nothing is stored
// twice or in another order.
func TestAnImportThatWasStoppedGoesOn(t *testing.T) {
	const pets = 4*importBatch + 1
	content := petLines(pets)
	test := func(t *testing.T, db, flag string) {
		s := openDatabase(t, db)
		for left := range 6 { // until a transaction is cancelled; six rounds are more than it takes
			ctx, cancel := context.WithCancel(t.Context())
			c := newImport(t, s, content, func(int) {
				if left == 0 {
					cancel()
				}
				left--
			}, flag)
			before := countPets(t, s)
			err := petImport(ctx, c)
			cancel()
			if err == nil {
				want := fmt.Sprintf("pets=%d ", pets-before)
				log := fmt.Sprint(c.stderr)
				if before == 0 || !strings.Contains(log, want) ||
					!strings.Contains(log, fmt.Sprint("alreadyStored=", before)) {
					t.Errorf("the last says %s, want %s", log, want)
				}
				break
			}
			now, ids := countPets(t, s), "unknown"
			if now > before {
				ids = fmt.Sprintf("%d to %d", before+1, now)
			}
			wantOneLine(t, err, false, fmt.Sprintf("%d of %d pets are stored, this time with the "+
				"ids %s; the same import goes on after them", now, pets, ids))
		}
		wantImportedBefore(t, db, petsFile(t, content), fmt.Sprint(pets), fmt.Sprint("1 to ", pets))
		wantImported(t, db, pets)
	}
	engines(t, func(t *testing.T, db string) {
		test(t, db, "-again=false")
	})
	t.Run("again", func(t *testing.T) {
		test(t, databasePath(t), "-again")
	})
}

// TestTwoImportsOfOneContentCannotBothGoOn: the one that finds another's pets ends.
func TestTwoImportsOfOneContentCannotBothGoOn(t *testing.T) {
	content := petLines(600)
	theirs := slices.Repeat([]string{rowOf(rex)}, 10)
	for _, flag := range []string{"-again=false", "-again"} {
		engines(t, func(t *testing.T, db string) {
			s := openDatabase(t, db)
			if flag == "-again" {
				mustImport(t, db, content)
			}
			before := countPets(t, s)
			c := newImport(t, s, content, func(int) {
				must(t, errorOf(s.importPets(t.Context(), digestOf(content), theirs, 0, 10)))
			}, flag)
			wantOneLine(t, petImport(t.Context(), c), false, "0 of 600 pets are stored",
				"another import of the same content is under way")
			wantPets(t, s, before+10)
		})
	}
}

// unknownOutcomes are ways in which a request to a node ends without a response.
var unknownOutcomes = map[string]fakeAnswer{"it was done": lose, "nothing was done": reset}

// TestAnImportGoesOnAfterAnUnknownOutcome of any of its transactions, be it that the pets were
// stored or not, and stores nothing twice; so does one with -again.
func TestAnImportGoesOnAfterAnUnknownOutcome(t *testing.T) {
	for what, end := range unknownOutcomes {
		for _, c := range []struct {
			flag               string
			pets, stored       int
			lost, transactions int64
		}{
			{"-again=false", 2 * importBatch, 2 * importBatch, 2, 3},
			{"-again", 2, 4, 1, 3},
			{"-again", 2, 4, 2, 3},
		} {
			t.Run(fmt.Sprint(c.flag, " ", c.lost, ", ", what), func(t *testing.T) {
				cluster := newCluster(t, 3)
				s, _ := openCluster(t, cluster, openOrMake)
				content := petLines(c.pets)
				if c.flag == "-again" {
					mustImport(t, cluster.addresses(), content)
				}
				var writes atomic.Int64
				cluster.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/db/request" && writes.Add(1) == c.lost {
						end(n, w, r)
					}
					return false
				})
				must(t, petImport(t.Context(), newImport(t, s, content, ignorePets, c.flag)))
				wantEqual(t, writes.Load(), c.transactions, "the number of writes")
				wantPets(t, s, int64(c.stored))
				if c.stored == c.pets {
					wantImported(t, cluster.addresses(), c.pets)
				}
			})
		}
	}
}

// TestTwoAgainsAtOnceAreOneRound: the second one finds the round of the first one, and takes it
// over.
func TestTwoAgainsAtOnceAreOneRound(t *testing.T) {
	content := petLines(2)
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustImport(t, db, content)
		first := newImport(t, s, content, func(int) {
			second := newImport(t, s, content, ignorePets, "-again")
			must(t, petImport(t.Context(), second))
		}, "-again")
		must(t, petImport(t.Context(), first))
		wantPets(t, s, 4)
	})
}

// TestAnImportLeavesRoomForOthers: after each transaction it lets them write for as long as that
// took.
func TestAnImportLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var begun []time.Duration
		var sizes []int
		c := newImport(t, newStore(t), petLines(2*importBatch+1), func(pets int) {
			begun = append(begun, time.Since(start).Round(time.Millisecond))
			sizes = append(sizes, pets)
			time.Sleep(time.Duration(len(sizes)) * 10 * time.Millisecond) // so long it takes
		})
		must(t, petImport(t.Context(), c))
		wantEqual(t, fmt.Sprint(begun), "[0s 20ms 60ms]", "the begins of transactions")
		wantEqual(t, sizes, []int{importBatch, importBatch, 1}, "the sizes of transactions")
	})
}

// TestAnExportIsWhole on a cluster too, which needs three responses of at most 10,000 pets. It may
// be of one status, and can be imported.
func TestAnExportIsWhole(t *testing.T) {
	takesSeconds(t)
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustWrite(t, s, sqlOf(`WITH RECURSIVE n (value) AS
				(SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 20001)
			INSERT INTO pets (category_id, status, name)
				SELECT -value, 2 + value % 3, 'pet ' || value FROM n`))
		file := filepath.Join(t.TempDir(), "all.jsonl")
		mustSay(t, db, "pet export "+file, `"msg":"pets exported","pets":20001`)
		content := readText(t, file)
		wantEqual(t, exportedPets(t, db), content, "what stdout gets")
		sold := strings.Join(regexp.MustCompile(`.*"sold"}\n`).FindAllString(content, -1), "")
		of := mustSay(t, db, "pet export -status sold -", `"msg":"pets exported","pets":6667`)
		wantEqual(t, of, sold, "what is exported of the sold ones")
		other := madeDatabase(t)
		mustImport(t, other, content)
		wantEqual(t, exportedPets(t, other), content, "what was imported")
	})
}

// TestAnExportOfAFileIsOneMoment: it lacks what is added meanwhile, and has what is deleted.
func TestAnExportOfAFileIsOneMoment(t *testing.T) {
	s := newStore(t)
	for range 3 {
		mustCreate(t, s, rex)
	}
	var pets []string
	must(t, errorOf(s.eachPet(t.Context(), "", func(pet *Pet) error {
		pets = append(pets, string(pet.appendJSON(nil)))
		if len(pets) > 1 {
			return nil
		}
		mustCreate(t, s, rex)
		return errorOf(s.edit(t.Context(), sqlOf("DELETE FROM pets WHERE id = 2")))
	})))
	if len(pets) != 3 || !strings.HasPrefix(pets[1], `{"id":2,`) {
		t.Errorf("exported is %q", pets)
	}
}

// TestAnExportThatFailsLeavesNoHalfFile, nor does it lose the one that was there.
func TestAnExportThatFailsLeavesNoHalfFile(t *testing.T) {
	db := madeDatabase(t)
	s := openDatabase(t, db)
	mustCreate(t, s, rex)
	folder := t.TempDir()
	file := filepath.Join(folder, "pets.jsonl")

	ctx, cancel := context.WithCancel(t.Context())
	c := commandOn(t, s.engine, "pet export "+file, func(st statement, _ []any) {
		if strings.HasPrefix(st.query, "SELECT id") {
			cancel()
		}
	})
	wantStopped(t, petExport(ctx, c))
	wantNames(t, folder)

	writeText(t, file, "before")
	mustFail(t, db, "pet export "+file, false, "cannot export the pets of "+db, file+" exists")
	wantEqual(t, filesIn(t, folder), map[string]string{"pets.jsonl": "before"}, "what is left")

	mustFailToPrint(t, db, "pet export", "cannot export the pets of "+db)
}

// TestAnImportThatHasEndedTellsAllIDsItGave, whatever has stopped it, and whoever has stored pets
// meanwhile. An older version has not noted the ids.
func TestAnImportThatHasEndedTellsAllIDsItGave(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		content := petLines(3 * importBatch)
		ctx, stop := context.WithCancel(t.Context())
		batches := 0
		c := newImport(t, s, content, func(int) {
			if batches++; batches == 3 {
				stop()
			}
		})
		wantOneLine(t, petImport(ctx, c), false, "context canceled")
		mustCreate(t, s, rex)
		mustImport(t, db, content)
		file := petsFile(t, content)
		wantImportedBefore(t, db, file, "1500", "1 to 1000", "1002 to 1501")
		mustWrite(t, s, sqlOf("DELETE FROM counters WHERE name LIKE 'ids % 1'"))
		_, _, err := petstore(t, nil, "pet", "import", "-db", db, file)
		wantOneLine(t, err, false, "all 1500 pets, with the ids unknown; -again")
	})
}

// TestRunsOfIDsAreBounded in a line.
func TestRunsOfIDsAreBounded(t *testing.T) {
	var ids idRuns
	for id := range int64(400) {
		ids.add(idRun{3*id + 1, 3*id + 2})
	}
	text := ids.String()
	if !strings.HasSuffix(text, ", 58 to 59, and 380 more") {
		t.Errorf("400 runs are told as %s", text)
	}
}

// TestDeletedPetsComeBack under their ids, 100,000 of them too, and an export is as before. Each
// batch is an edit, so that services show the pets.
func TestDeletedPetsComeBack(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustWrite(t, s, sqlOf(`WITH RECURSIVE n (value) AS
				(SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 3000)
			INSERT INTO pets (category_id, status, name)
				SELECT -value, 2 + value % 3, 'x''4' || value || '"' FROM n`))
		before := exportedPets(t, db)
		wantIDs := func(first int64) {
			t.Helper()
			must(t, s.refresh(t.Context())) // as the service does four times a second
			ids, _ := pageIDs(t, s, "", 1, 0)
			wantEqual(t, ids, []int64{first}, "the first pet")
		}
		wantIDs(1)
		ids := []string{"3000"}
		for id := range 2000 {
			ids = append(ids, fmt.Sprint(id+1))
		}
		deleted := mustSay(t, db, "pet delete "+strings.Join(ids, " "), `"pets":2001`)
		lines := strings.SplitAfter(before, "\n")
		want := strings.Join(lines[:2000], "") + lines[2999]
		wantEqual(t, deleted, want, "what pet delete prints")
		wantIDs(2001)
		file := petsFile(t, deleted)
		mustSay(t, db, "pet import -keep-ids "+file, `"pets":2001`, `"alreadyThere":0`)
		wantIDs(1)
		wantEqual(t, exportedPets(t, db), before, "an export")
		mustSay(t, db, "pet import -keep-ids "+file, `"pets":0`, `"alreadyThere":2001`)
		wantNextID(t, s, 3001)
	})
}

// TestAnImportThatARestoreOvertakesDoesNotSucceed: what it stored before may not be in the copy.
func TestAnImportThatARestoreOvertakesDoesNotSucceed(t *testing.T) {
	db := madeDatabase(t)
	mustImport(t, db, petLines(1))
	deleted := mustSay(t, db, "pet delete 1")
	// A restore gives a database another identity.
	makeOtherDatabase(t, db, `CREATE TRIGGER restore AFTER INSERT ON pets
		BEGIN UPDATE identity SET value = value + 1; END`)
	for _, arguments := range []string{"-keep-ids ", ""} {
		mustFail(t, db, "pet import "+arguments+petsFile(t, deleted), false, "a copy was restored")
	}
}

// TestAnIDThatCannotBeKeptStopsAnImportBeforeAnythingIsStored.
func TestAnIDThatCannotBeKeptStopsAnImportBeforeAnythingIsStored(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustImport(t, db, petLines(3))
		before := exportedPets(t, db)
		mustSay(t, db, "pet delete 1 3")
		one := strings.SplitAfter(before, "\n")[0]
		for line, want := range map[string]string{
			`{"name":"Rex","categoryId":1}`:          "line 2: id: must be that of a pet",
			`{"id":1.0,"name":"Rex","categoryId":1}`: "line 2: id: must be that of a pet",
			`{"id":"3","name":"Rex","categoryId":1}`: "line 2: id: must be that of a pet",
			`{"id":0,"name":"Rex","categoryId":1}`:   "line 2: id: must be that of a pet",
			`{"id":1,"name":"Rex","categoryId":1}`:   "line 2: id: an earlier line has it",
			`{"id":4,"name":"Rex","categoryId":1}`:   "id 4: it was never given to a pet",
			`{"id":2,"name":"pet 2","categoryId":1}`: "id 2: another pet has it",
		} {
			file := petsFile(t, one+line)
			_, log, err := petstore(t, nil, "pet", "import", "-keep-ids", "-db", db, file)
			wantOneLine(t, err, false, file, "nothing was stored")
			wantPart(t, log, want, "what is said of ", line)
			wantPets(t, s, 1)
		}
	})
}

// TestNothingIsDeletedThatCannotComeBack: stdout does not take the pets, or something is edited
// while it waits for its reader. Nothing is locked meanwhile.
func TestNothingIsDeletedThatCannotComeBack(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		mustImport(t, db, petLines(3))
		mustFailToPrint(t, db, "pet delete 1 2", "nothing was deleted")
		wantPets(t, s, 3)
		pager := writerFunc(func(p []byte) (int, error) {
			mustCreate(t, s, rex) // is no edit
			mustSay(t, db, "pet set -name Max 3")
			return len(p), nil
		})
		args := []string{"pet", "delete", "-db", db, "1", "2"}
		err := run(t.Context(), args, nil, nil, pager, io.Discard)
		wantOneLine(t, err, false, "nothing was deleted, since something was edited")
		wantPets(t, s, 4)
		mustSay(t, db, "pet delete 1 2", `"pets":2`)
	})
}

// TestNothingIsDeletedOfADatabaseThatWasRestored after its pets were read from another one.
func TestNothingIsDeletedOfADatabaseThatWasRestored(t *testing.T) {
	copied := madeDatabase(t)
	mustImport(t, copied, petLines(2))
	db := madeDatabase(t)
	mustImport(t, db, `{"name":"another","categoryId":1}`+"\n")
	pager := writerFunc(func(p []byte) (int, error) {
		mustSay(t, db, "restore "+copied)
		return len(p), nil
	})
	err := run(t.Context(), []string{"pet", "delete", "-db", db, "1"}, nil, nil, pager, io.Discard)
	wantOneLine(t, err, false, "nothing was deleted, since something was edited or restored")
	wantPets(t, openDatabase(t, db), 2)
}

// TestAnImportThatStopsAtALineTellsWhatIsStored by an earlier run, of a version that took the line.
func TestAnImportThatStopsAtALineTellsWhatIsStored(t *testing.T) {
	db := madeDatabase(t)
	s := openDatabase(t, db)
	long, many := strings.Repeat(" ", maxBody+3), strings.Repeat("{}\n", 30)
	for _, wrong := range []string{"{}", long, many} {
		content := petLines(1) + wrong + "\n" + petLines(importBatch) // more than a buffer holds
		must(t, errorOf(s.importPets(t.Context(), digestOf(content), []string{rowOf(rex)}, 0, 1)))
		_, err := importContent(t, db, content)
		wantOneLine(t, err, false, "1 of its pets are stored, by an earlier run")
	}
}

// TestAnExportGoesOnPastDamage: each page of a database is damaged in its turn, then each half of
// the file, and the log. SQLite ends a log where it is damaged.
func TestAnExportGoesOnPastDamage(t *testing.T) {
	takesSeconds(t)
	const pageSize, pets = 4096, 5000
	db := madeDatabase(t)
	s := openDatabase(t, db)
	mustImport(t, db, petLines(pets))
	all := slices.Collect(strings.Lines(exportedPets(t, db)))
	log := readText(t, db+"-wal")
	withLog := databasePath(t)
	writeText(t, withLog, readText(t, db))
	writeText(t, withLog+"-wal", log[:len(log)/2]+strings.Repeat("\xff", len(log)/2))
	earlier := exportedPets(t, withLog)
	if earlier == "" || !strings.HasPrefix(strings.Join(all, ""), earlier) {
		t.Errorf("of a damaged log %.100s is exported", earlier)
	}

	must(t, s.Close())
	sound := readText(t, db)
	refused, whole := 0, 0
	leaves := map[int]int{} // by their place: how many pets each holds
	damage := func(content string) (lost int) {
		t.Helper()
		damaged := databasePath(t)
		writeText(t, damaged, content)
		file := damaged + ".jsonl"
		_, _, err := petstore(t, nil, "pet", "export", "-db", damaged, file)
		if isMissing(file) {
			refused++
			wantOneLine(t, err, false, damaged)
			return pets
		}
		lost = wantAllBut(t, readText(t, file), fmt.Sprint(err), all)
		wantEqual(t, err != nil, lost > 0, "whether it fails where it lacks ", lost)
		return lost
	}
	broken := strings.Repeat("\xff", pageSize)
	for at := 0; at < len(sound); at += pageSize {
		switch lost := damage(sound[:at] + broken + sound[at+pageSize:]); {
		case lost == 0:
			whole++
		case lost < 300:
			leaves[at] = lost
		}
	}
	wantWithin(t, refused, 1, 3, "the number of pages without which nothing can be exported")
	wantWithin(t, len(leaves), 20, 60, "the number of leaves")
	alternate, want := sound, 0
	for i, at := range slices.Sorted(maps.Keys(leaves)) {
		if i%2 == 0 {
			alternate = alternate[:at] + broken + alternate[at+pageSize:]
			want += leaves[at]
		}
	}
	wantEqual(t, damage(alternate), want, "what is lost with every second leaf")
	wantWithin(t, whole, 20, 120, "the number of pages that an export does not need")
	half := len(sound) / pageSize / 2 * pageSize
	damage(sound[:half] + strings.Repeat("\x00", len(sound)-half))
	damage(sound[:pageSize] + strings.Repeat("\x00", half-pageSize) + sound[half:])
}

// TestAnExportGoesOnPastARowThatIsNoPets, which SQLite itself takes for sound.
func TestAnExportGoesOnPastARowThatIsNoPets(t *testing.T) {
	db := madeDatabase(t)
	mustImport(t, db, petLines(4))
	all := slices.Collect(strings.Lines(exportedPets(t, db)))
	otherProgram(t, db, "PRAGMA ignore_check_constraints = ON",
		"UPDATE pets SET status = 1 WHERE id = 2", // just outside the numbers of statuses
		"UPDATE pets SET status = 5 WHERE id = 3")
	exported, _, err := petstore(t, nil, "pet", "export", "-db", db)
	wantOneLine(t, err, false, "those with the ids 2 to 3 are left out")
	wantEqual(t, exported, all[0]+all[3], "what is exported")
}

// wantAllBut checks that an export has all pets but those whose ids the error names, in their
// order, and returns how many it lacks.
func wantAllBut(t testing.TB, exported, problem string, all []string) (lost int) {
	t.Helper()
	got := slices.Collect(strings.Lines(exported))
	runs := regexp.MustCompile(`(\d+) to (\d+)`).FindAllStringSubmatch(problem, -1)
	for i, line := range all {
		if len(got) > 0 && got[0] == line {
			got = got[1:]
			continue
		}
		lost++
		isNamed := slices.ContainsFunc(runs, func(run []string) bool {
			first, _ := strconv.Atoi(run[1])
			last, _ := strconv.Atoi(run[2])
			return first <= i+1 && i+1 <= last
		})
		if !isNamed {
			t.Fatalf("%s is neither exported nor named: %s", line, problem)
		}
	}
	wantEqual(t, len(got), 0, "the number of lines that are no pet's")
	return lost
}
