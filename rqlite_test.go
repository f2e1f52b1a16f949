package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// marks are what a refusal must not change.
func (c *fakeCluster) marks() [3]int64 {
	return [3]int64{
		c.number("PRAGMA application_id"),
		c.number("PRAGMA user_version"),
		c.number("SELECT count(*) FROM sqlite_schema"),
	}
}

// wantRefused checks that a store on the cluster is refused in one line that says why, and that the
// cluster is left as it was.
func (c *fakeCluster) wantRefused(want string) {
	c.t.Helper()
	before := c.marks()
	for _, mode := range []openMode{openToServe, openExisting} {
		_, err := openStore(c.t.Context(), c.securedAddresses(), mode, testLog)
		if err == nil {
			c.t.Fatal("it is opened")
		}
		wantOneLine(c.t, err, false, "cannot open the database "+c.addresses()+": ", want)
		wantCount(c.t, err.Error(), "s3cret", 0, "the error")
	}
	isNoQuery := func(r string) bool {
		return !strings.HasSuffix(r, "level=linearizable") && !strings.HasSuffix(r, "level=strong")
	}
	if sent := c.arrived(); slices.ContainsFunc(sent, isNoQuery) {
		c.t.Errorf("more than queries was sent: %q", sent)
	}
	wantEqual(c.t, c.marks(), before, "the marks")
}

func TestAClusterThatCannotBeUsedIsRefused(t *testing.T) {
	const others = "it belongs to another program"
	newer := append(schemaOf(len(migrations)), "PRAGMA user_version = 99")
	for what, refused := range map[string]struct {
		holds  []string // statements
		path   string   // to which the nodes give an answer
		answer fakeAnswer
		want   string
	}{
		"another program, which knows no /status": {nil, "/status", respond(404, ""), "404"},
		"another program, which shows a page": {
			nil, "/status", respond(200, "<html>"), `rqlite ""`,
		},
		"another program, which speaks JSON": {
			nil, "/status", respond(200, `{"a":"b"}`), `rqlite ""`,
		},
		"another program, which sends elsewhere": {nil, "/status", redirect, "307"},
		"another password":                       {nil, "/", respond(401, ""), "401 Unauthorized"},
		"tables of another program": {
			[]string{"CREATE TABLE pets (name)"}, "", nil, others,
		},
		"the mark of another program": {
			[]string{"PRAGMA application_id = 7"}, "", nil, others,
		},
		"the schema of a newer petstore": {newer, "", nil, "its schema is version 99"},
		"a database that cannot be read": {
			nil, "/db/query", respond(200, `{"results":[{"error":"disk I/O error"}]}`),
			"disk I/O error",
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := newSecuredCluster(t)
			c.exec(refused.holds...)
			if refused.answer != nil {
				c.always(refused.path, refused.answer)
			}
			c.wantRefused(refused.want)
		})
	}
}

// schemaOf are the statements that make an empty database of a version, whose identity is 7.
func schemaOf(version int) []string {
	statements := append(slices.Clone(migrations[:version]), applicationMark,
		fmt.Sprint("PRAGMA user_version = ", version))
	if version >= identityVersion {
		statements = append(statements, "INSERT INTO identity (id, value) VALUES (1, 7)")
	}
	return statements
}

var applicationMark = fmt.Sprint("PRAGMA application_id = ", applicationID)

func TestANodeThatIsTooOldIsRefused(t *testing.T) {
	for _, version := range []string{
		"v8.26.8", "v8.32.3", "v7.99.99", "8.43.4", "v8.43", "unknown", "",
	} {
		t.Run(version, func(t *testing.T) {
			c := newSecuredCluster(t)
			c.nodes[2].version = version
			c.wantRefused(fmt.Sprintf("is rqlite %q, and v8.32.4 or newer is needed", version))
		})
	}
	c := newCluster(t, 2)
	c.nodes[0].version, c.nodes[1].version = "v8.32.4", "v9.0.0"
	openCluster(t, c, openToServe)
}

// newSecuredCluster makes a cluster with a password.
func newSecuredCluster(t testing.TB) *fakeCluster {
	c := newCluster(t, 3)
	c.user, c.password = "anna", "s3cret"
	return c
}

// securedAddresses are what -db says to use a newSecuredCluster.
func (c *fakeCluster) securedAddresses() string {
	return strings.ReplaceAll(c.addresses(), "//", "//anna:s3cret@")
}

// TestACommandMakesNoDatabaseOnACluster that has none: the first service or the first key does.
func TestACommandMakesNoDatabaseOnACluster(t *testing.T) {
	c := newCluster(t, 1)
	mustFail(t, c.addresses(), "key list", false, "petstore makes it at its first start")
	wantEqual(t, c.marks(), [3]int64{}, "the marks")
	mustSay(t, c.addresses(), "key create")
	wantEqual(t, c.marks()[1], int64(len(migrations)), "the schema that a first key makes")
}

// TestASecretIsShownNowhere: not in errors as main shows them, logs, /metrics or the name of the
// engine.
func TestASecretIsShownNowhere(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	c := newSecuredCluster(t)
	addresses := c.securedAddresses()
	s, log := openClusterAt(t, addresses, openToServe)
	var shown strings.Builder
	show := func(err error) {
		shown.WriteString(redact(fmt.Sprintln(err)))
	}
	fail := func() {
		show(errorOf(s.write(t.Context(), sqlOf("DELETE FROM usage"))))
	}
	c.lead(1)
	fail()
	answerOnce(c, redirect)
	fail()
	answerOnce(c, reset)
	fail()
	unlock := c.lock()
	c.password = "changed"
	unlock()
	fail()
	c.nodes[1].stop()
	fail()
	_, _, err := petstore(t, nil, "key", "list", "-db", addresses+"/path")
	show(err)
	engine, node := s.engine.describe()
	service := newService(s, settings{}, newLogger(log, "json", slog.LevelDebug))
	metrics := newOperator(service).currentMetrics().String()
	shown.WriteString(engine + node + databaseName(addresses) + metrics + log.String())
	for _, secret := range []string{"anna", "s3cret"} {
		wantCount(t, shown.String(), secret, 0, "what is shown")
	}
	want := fmt.Sprintf(`petstore_engine_info{engine="rqlite",node=%q} 1`, node)
	wantPart(t, metrics, want, "/metrics")
}

// redirect sends a client to another host, which must not be asked.
func redirect(_ *fakeNode, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "http://elsewhere:1/", http.StatusTemporaryRedirect)
}

// TestNoProxyOfTheEnvironmentIsUsed: nothing goes to another host.
func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	e := newRqlite(nil, openToServe, testLog)
	if e.client.Transport.(*http.Transport).Proxy != nil {
		t.Error("there may be a proxy")
	}
}

// TestWhatIsReadIsBounded: a node that sends without an end fills no memory.
func TestWhatIsReadIsBounded(t *testing.T) {
	for what, c := range map[string]struct {
		begins string
		most   int64
	}{
		"a head": {"HTTP/1.1 200 OK\r\nX: ", 64 << 10},
		"a body": {"HTTP/1.1 200 OK\r\n\r\n" + `{"results":[{"error":"`, 4 << 20},
	} {
		t.Run(what, bubble(func(t *testing.T) {
			var sent int64
			e := onPipe(t, func(w io.Writer) {
				_, err := io.WriteString(w, c.begins)
				for sent = 0; err == nil && sent < 100<<20; sent += 1024 {
					_, err = io.WriteString(w, strings.Repeat("x", 1024))
				}
			})
			e.locating <- struct{}{} // nobody asks for a status
			_, err := e.write(t.Context(), []statement{sqlOf("DELETE FROM usage")})
			if !errors.Is(err, errOutcome) || len(err.Error()) > 2000 {
				t.Errorf("a write with an endless response says %.200v", err)
			}
			// the node notices that the client has left
			synctest.Wait()
			if sent < c.most-4096 || sent > c.most+16384 { // what net/http reads ahead
				t.Errorf("%d bytes were read", sent)
			}
		}))
	}
}

// TestWhatIsLongIsReadInParts: reports, exports and flushes work with 6,000 keys that are used
// today, and 40,000 that are banned, whatever their names.
func TestWhatIsLongIsReadInParts(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		const keys, bans = 6_000, 40_000
		now := instantOf(time.Now())
		c.exec(fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
				WHERE i < %d)
			INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day,
				created_at, lifetime, expires_at, unbanned_at)
			SELECT unhex(format('%%064d', i)), 'abcd', 0, '%s', 'free', 0, 0, 1, 0, 0, 0
			FROM n`, keys, strings.Repeat("😀", 200)),
			"INSERT INTO pets (category_id, status, name) SELECT 1, 2, name FROM api_keys",
			fmt.Sprintf("INSERT INTO usage_days SELECT id, %d, 60, 1, 1 FROM api_keys",
				now/dayMillis),
			fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
				WHERE i < %d)
				INSERT INTO usage SELECT i, 60, %d, 60, %d, %d, %d + i FROM n`,
				bans, now+minuteMillis, now+dayMillis, now, now+minuteMillis))
		report, err := readReport(t.Context(), s, now)
		must(t, err)
		if len(report.NearLimits) != 20 || len(report.Usage) != 15 {
			t.Errorf("the report has %d and %d keys", len(report.NearLimits), len(report.Usage))
		}
		for _, line := range []string{"key list", "key usage -days=1", "pet export -"} {
			var out bytes.Buffer
			must(t, onStore(t, s, &out, line))
			wantCount(t, out.String(), "\U0001F600", 200*keys, line)
		}
		l := newLedger(s, time.Minute)
		useMany(t, l, 2*maxBatch)
		must(t, l.flush(t.Context(), time.Now, false))
	})
}

// readPet reads a pet as clients get it.
func readPet(t testing.TB, s *store, id int64) (pet Pet) {
	t.Helper()
	found, err := s.pet(id)
	must(t, err)
	must(t, json.Unmarshal(found.body, &pet))
	return pet
}

// TestTextsThatLookLikeSomethingElseArriveAsTheyAre: names, Idempotency-Keys and names of keys.
func TestTextsThatLookLikeSomethingElseArriveAsTheyAre(t *testing.T) {
	onStores(t, func(t *testing.T, s *store) {
		for text := range strings.SplitSeq(`x'41'|X'41'|x''| x'41' |x'4'|'); DROP TABLE pets; --|`+
			`" OR 1 = 1; --|?1|:name|$.name|'$'|{"name":"Rex"}|["Rex"]|[]|"Rex"|"|\|\u0041|\"|`+
			`null|true|0|-1|1e3|9007199254740993|<b>&amp;</b>|%|_|NULL|json('1')|Zoë 🐶|`+
			"\u2028", "|") {
			named := NewPet{Name: text, CategoryID: 1, Status: Sold}
			id := mustCreate(t, s, named)
			wantEqual(t, readPet(t, s, id), Pet{ID: id, NewPet: named}, "the pet")
			for _, isRepeat := range []bool{false, true} {
				again, replayed, reused, err := s.createPetOnce(1, named, 1, text, []byte(text),
					testTime)
				must(t, err)
				if again != id+1 || replayed != isRepeat || reused {
					t.Errorf("under %q: pet %d, replayed %v", text, again, replayed)
				}
			}
			mustInsertKey(t, s, apiKey{Name: text})
			must(t, errorOf(s.edit(t.Context(), setName(1, text))))
			keys, err := readKeys(t.Context(), s, 0,
				"WHERE k.id = 1 OR k.id = (SELECT max(id) FROM api_keys)")
			must(t, err)
			for _, key := range keys {
				wantEqual(t, key.Name, text, "the name of a key")
			}
		}
		const wrong = "SELECT count(*) FROM pets WHERE typeof(name) <> 'text'"
		wantEqual(t, readNumber(t, s, wrong), 0, "the number of names that are no texts")
	})
}

// oddPets are the modelOddPets that a client may send. Every field is set, also one that is new.
func oddPets(t testing.TB) []NewPet {
	t.Helper()
	pets := slices.DeleteFunc(slices.Clone(modelOddPets), func(pet NewPet) bool {
		return checkName(pet.Name) != ""
	})
	for i := range pets {
		for field, value := range reflect.ValueOf(&pets[i]).Elem().Fields() {
			if !value.IsZero() {
				continue
			}
			switch to := value.Addr().Interface().(type) {
			case *string:
				*to = fmt.Sprintf("%s %d \" \\ \u2028 😀", field.Name, i)
			case *int64:
				*to = math.MaxInt64 - int64(i)
			default:
				t.Fatalf("NewPet.%s: oddPets cannot set a %v", field.Name, field.Type)
			}
		}
	}
	return pets
}

// bodyOf is a pet as a client sends it: the description says how its fields are spelt.
func bodyOf(t testing.TB, pet NewPet) object {
	t.Helper()
	body := object{}
	for field, value := range reflect.ValueOf(pet).Fields() {
		known := len(body)
		for name := range fields(described, "components", "schemas", "NewPet", "properties") {
			if strings.EqualFold(name, field.Name) {
				body[name] = value.Interface()
			}
		}
		if len(body) == known {
			t.Fatalf("NewPet.%s is not in the description", field.Name)
		}
	}
	return body
}

// wantFields checks the fields of an array of pets that was found in some place.
func wantFields(t testing.TB, place, array string, pets []object) {
	t.Helper()
	var found []object
	decoder := json.NewDecoder(strings.NewReader(array))
	decoder.UseNumber()
	must(t, decoder.Decode(&found))
	if len(found) != len(pets) {
		t.Fatalf("%s: there are %d pets, want %d", place, len(found), len(pets))
	}
	for i, pet := range pets {
		for name, value := range pet {
			if got := found[i][name]; fmt.Sprint(got) != fmt.Sprint(value) {
				t.Fatalf("%s: the %s of pet %d is %.100q, want %.100q", place, name, i+1,
					fmt.Sprint(got), fmt.Sprint(value))
			}
		}
	}
}

// TestEveryFieldOfAPetGoesEverywhere: into responses, and through every command that copies. That
// all responses are alike is shown by TestPetsHaveTheSameBytesEverywhere. A string with half a
// surrogate pair goes nowhere.
func TestEveryFieldOfAPetGoesEverywhere(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		newDatabase := func() string {
			if isCluster(db) {
				return newCluster(t, 1).addresses()
			}
			return databasePath(t)
		}
		s := &shop{t: t, store: openDatabase(t, db)}
		log := slog.New(slog.NewTextHandler(t.Output(), nil)) // says which statement fails
		s.service = newService(s.store, settings{}, log)
		s.key = s.newKey(quota{1000, 1000})
		var pets []object
		var created []string
		for i, pet := range oddPets(t) {
			pets = append(pets, bodyOf(t, pet))
			body, err := json.Marshal(pets[i])
			must(t, err)
			key := "Idempotency-Key:" // of every other one, and none of the rest
			if i%2 == 1 {
				key += fmt.Sprint(i)
			}
			created = append(created, s.post(key, "="+string(body)).is(201).body)
		}
		array := func(pets []string) string {
			return "[" + strings.Join(pets, ",") + "]"
		}
		for name, value := range pets[0] {
			if reflect.ValueOf(value).Kind() != reflect.String {
				continue
			}
			halved := maps.Clone(pets[0])
			halved[name] = "HALF"
			body, err := json.Marshal(halved)
			must(t, err)
			refused := s.post("=" + strings.Replace(string(body), "HALF", `\ud83d`, 1))
			if refused.status != 400 {
				t.Errorf("the field %s takes half a surrogate pair: %s", name, refused.body)
			}
		}
		wantFields(t, "create", array(created), pets)
		wantFields(t, "list", s.list().is(200).body, pets)
		wantExported := func(place, db string) (exported string) {
			t.Helper()
			exported = exportedPets(t, db)
			wantFields(t, place, array(strings.Split(strings.TrimSpace(exported), "\n")), pets)
			return exported
		}
		exported := wantExported("export", db)

		other := newDatabase()
		openDatabase(t, other)
		_, err := importContent(t, other, exported)
		must(t, err)
		wantExported("import", other)

		file, restored := databasePath(t), newDatabase()
		mustSay(t, db, "backup "+file)
		wantExported("backup", file)
		mustSay(t, restored, "restore "+file)
		wantExported("restore", restored)

		for name, value := range pets[1] {
			flag := fmt.Sprintf("-%s=%v", strings.TrimSuffix(name, "Id"), value)
			_, _, err := petstore(t, nil, "pet", "set", "-db", db, flag, "1")
			must(t, err)
		}
		pets[0] = pets[1]
		wantExported("pet set", db)

		remove := []string{"pet", "delete", "-db", db}
		for i := range pets {
			remove = append(remove, fmt.Sprint(i+1))
		}
		removed, _, err := petstore(t, nil, remove...)
		must(t, err)
		kept := filepath.Join(t.TempDir(), "removed.jsonl")
		must(t, os.WriteFile(kept, []byte(removed), 0o600))
		mustSay(t, db, "pet import -keep-ids "+kept)
		wantExported("pet import -keep-ids", db)
	})
}

// TestThreeServicesMigrateAtTheSameMoment: the first does it, and all of them run, on one identity.
func TestThreeServicesMigrateAtTheSameMoment(t *testing.T) {
	for version := range migrations {
		t.Run(fmt.Sprint("from version ", version), func(t *testing.T) {
			c := newCluster(t, 3)
			if version > 0 {
				c.exec(schemaOf(version)...)
			}
			var arrived, opening sync.WaitGroup
			arrived.Add(3)
			c.before("/db/execute", func(*http.Request) { // three have found the old version
				arrived.Done()
				arrived.Wait()
			})
			var identities [3]int64
			for i := range identities {
				opening.Go(func() {
					s, err := openStore(t.Context(), c.addresses(), openToServe, testLog)
					if err != nil {
						t.Error(err)
						return
					}
					identities[i] = clusterEngine(s).identity
					must(t, s.Close())
				})
			}
			opening.Wait()
			stored := c.number("SELECT value FROM identity")
			if want := [3]int64{stored, stored, stored}; stored < 1 || identities != want {
				t.Errorf("the identity is %d, and the services know %d", stored, identities)
			}
			wantEqual(t, c.marks()[1], int64(len(migrations)), "the version of the schema")
		})
	}
}

// TestStatementsNameTheirColumns, so that they run beside a newer schema.
func TestStatementsNameTheirColumns(t *testing.T) {
	blind := regexp.MustCompile(
		`(INSERT( OR \w+)?|REPLACE)\s+INTO\s+\w+\s+(VALUES|SELECT)|SELECT\s+\*`)
	for _, line := range orderTable {
		for _, literal := range literalsOf(t, line.file+".go") {
			if blind.MatchString(literal) {
				t.Errorf("this statement of %s names no columns: %s", line.file, literal)
			}
		}
	}
}

// garbledBodies are what a node says with status 200 when nobody knows what was done.
var garbledBodies = map[string]string{
	"leadership that was lost":         `{"error":"leadership lost while committing log"}`,
	"forwarding that failed":           `{"results":[],"error":"node failed to process Execute"}`,
	"HTML":                             "<html>Welcome to nginx!</html>",
	"nothing":                          "",
	"JSON that was cut off":            `{"results":[{"last_insert_id":1,"rows_aff`,
	"JSON of another kind":             `["results"]`,
	"no results":                       `{}`,
	"fewer results than statements":    `{"results":[]}`,
	"more results than statements":     `{"results":[{},{},{},{},{},{},{},{},{}]}`,
	"numbers that are texts":           `{"results":[{"last_insert_id":"1"}]}`,
	"a number that is none of 64 bits": `{"results":[{"last_insert_id":9223372036854775808}]}`,
}

// hang never responds.
func hang(_ *fakeNode, _ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
}

// garbledAnswers are those, and others after which nobody knows what was done.
func garbledAnswers() map[string]fakeAnswer {
	answers := map[string]fakeAnswer{
		"a reset":       reset,
		"a timeout":     hang,
		"a redirect":    redirect,
		"another 503":   respond(503, "store is not open\n"),
		"another 500":   respond(500, "leader address: what?\n"),
		"a bad request": respond(400, "invalid JSON body\n"),
	}
	for what, body := range garbledBodies {
		answers[what] = respond(200, body)
	}
	return answers
}

// TestWhatMayHaveBeenDoneIsNotRepeated: nobody knows what became of such a write, and that is all
// that is said. A read may be repeated.
func TestWhatMayHaveBeenDoneIsNotRepeated(t *testing.T) {
	for what, answer := range garbledAnswers() {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			answerOnce(c, answer)
			wantTime(t, "the write", 0, leaderWait+statusWait, errOutcome, func() error {
				_, err := s.createPet(1, rex)
				return err
			})
			c.wantArrived(writeTo(0))
			wantEqual(t, clusterEngine(s).unknown.Load(), 1, "the number of unknown outcomes")
			answerOnce(c, answer)
			wantIDs(t, s)
			const read = "0 POST /db/query?level=linearizable"
			c.wantArrived(read, read)
			wantNextID(t, s, 1)
		}))
	}
}

// TestAWriteThatFailsAtOneNodeMayBeStored by the others: its disk alone may be full. From then on
// it lacks what they have, and is not used any more, even if it leads again. These nodes are of a
// version that cannot be told to lead no more.
func TestAWriteThatFailsAtOneNodeMayBeStored(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		for _, n := range c.nodes {
			n.version = "v8.39.1"
		}
		for i, response := range []string{
			diskIsFull,
			// Of the guard, which does not hold for another reason.
			`{"results":[{"error":"disk I/O error"}]}`,
		} {
			c.failDisk(s, response)
			if writes := c.arrived(); writes[0] != writeTo(i) || slices.Contains(writes[1:],
				writes[0]) {
				t.Errorf("sent was %q", writes)
			}
			_, err := s.createPet(1, rex)
			if !errors.Is(err, errLacks) || errors.Is(err, errOutcome) {
				t.Errorf("a write while the node still leads says %v", err)
			}
			_, err = s.page("", 20, 0)
			if !errors.Is(err, errLacks) || !errors.Is(err, errUnavailable) {
				t.Errorf("a read while the node still leads says %v", err)
			}
			isAsked := slices.Compact(c.arrived())
			wantEqual(t, isAsked, []string{fmt.Sprint(i, " POST /leader")}, "sent")
			c.lead(i + 1)
			wantNextID(t, s, int64(i+1))
			c.wantArrived(writeTo(i + 1))
		}
		wantCount(t, c.log.String(), "a node is not used any more", 2, "the log")
		wantCount(t, c.log.String(), "goes on leading", 2, "the log")
	})
}

// TestALeaderThatLacksAWriteIsDeposed, since other services may not know of it: with the next
// request, and when it leads again, also if another node passes requests on to it. What it confirms
// then is unknown.
func TestALeaderThatLacksAWriteIsDeposed(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.failDisk(s, diskIsFull)
		wantNextID(t, s, 1)
		c.wantArrived(writeTo(0), "0 POST /leader", writeTo(1))
		c.lead(0)
		wantError(t, errorOf(s.createPet(1, rex)), errOutcome, "a write that was passed on")
		c.wantArrived(writeTo(1), "0 POST /leader")
		c.lead(0)
		wantIDs(t, s, 1, 2)
		wantNextID(t, s, 3)
		// If all lack something, none is better than another.
		for i := range 3 {
			c.lead(i)
			clusterEngine(s).nodes[i].lacks.Store(true)
		}
		c.arrived()
		wantError(t, errorOf(s.createPet(1, rex)), errLacks, "a write where all lack one")
		c.wantArrived()
	})
}

// failDisk lets a write fail for the disk of the node that does it.
func (c *fakeCluster) failDisk(s *store, response string) {
	c.t.Helper()
	answerOnce(c, respond(200, response))
	wantError(c.t, errorOf(s.createPet(1, rex)), errOutcome, "the write")
}

// wantLeft checks that this node alone is not used any more.
func (c *fakeCluster) wantLeft(node string) {
	c.t.Helper()
	left := regexp.MustCompile(`not used any more.*`).FindAllString(c.log.String(), -1)
	if len(left) != 1 || !strings.Contains(left[0], node) {
		c.t.Errorf("left are %q, want %s", left, node)
	}
}

const diskIsFull = `{"results":[],"error":"database or disk is full"}` // of the commit

// TestANodeThatOnlyPassesOnIsNotLeft for the disk of the leader, which was elected meanwhile.
func TestANodeThatOnlyPassesOnIsNotLeft(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.lead(1)
		for range 2 {
			c.failDisk(s, diskIsFull)
		}
		if writes := c.arrived(); !slices.Contains(writes, writeTo(0)) ||
			!slices.Contains(writes, writeTo(1)) {
			t.Errorf("sent was %q", writes)
		}
		c.wantLeft("node1:4001")
		c.lead(0)
		wantNextID(t, s, 1)
	})
}

// TestALeaderIsLeftThoughAnotherNodeWasAsked: the one that was asked is sound.
func TestALeaderIsLeftThoughAnotherNodeWasAsked(t *testing.T) {
	for _, response := range []string{
		diskIsFull,
		`{"results":[{},{"error":"database is locked"}]}`,
		`{"results":[{},{"error":"database disk image is malformed"}]}`,
	} {
		onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
			c.lead(1)
			answerOnce(c, func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Rqlite-Served-By", c.nodes[1].addr)
				respond(200, response)(n, w, r)
			})
			wantError(t, errorOf(s.createPet(1, rex)), errOutcome, "the write")
			c.wantLeft("node1:4001")
			c.lead(2)
			wantNextID(t, s, 1)
		})
	}
}

// TestANodeThatIsStartingHasNoAddress. Another node's answer, which names none either, is not taken
// for one that it has served.
func TestANodeThatIsStartingHasNoAddress(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		e := clusterEngine(s)
		c.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/status" {
				respond(200, `{"build":{"version":"v8.43.4"},"store":{"raft":{}}}`)(n, w, r)
			}
			return r.URL.Path == "/status"
		})
		_, err := e.status(t.Context(), e.nodes[2])
		must(t, err)
		e.nodes[2].lacks.Store(true)
		wantNextID(t, s, 1)
	})
}

// TestAStartReadsWhatNeedsNoWrite: once a node was removed, other reads wait for the next write.
func TestAStartReadsWhatNeedsNoWrite(t *testing.T) {
	c := newCluster(t, 1)
	openCluster(t, c, openToServe)
	for _, request := range c.arrived() {
		if strings.Contains(request, "/db/query") {
			wantEqual(t, request, "0 POST /db/query?level=strong", "the first read")
			return
		}
	}
	t.Error("nothing was read")
}

// TestANodeThatWasLeftPassesNothingOn, where the leader is none of the nodes of -db.
func TestANodeThatWasLeftPassesNothingOn(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		e := clusterEngine(s)
		e.nodes = e.nodes[:2]
		e.raftAddresses.Delete("raft2:4002")
		for leader := range 2 {
			c.lead(leader)
			c.failDisk(s, diskIsFull)
		}
		c.lead(2)
		wantError(t, errorOf(s.createPet(1, rex)), errLacks,
			"a write through nodes that were left")
		wantCount(t, c.log.String(), "another node is in use", 1, "the log")
	})
}

// TestAConnectionThatBreaksIsNotUsedForARepeat, over a real network: net/http repeats some requests
// by itself.
func TestAConnectionThatBreaksIsNotUsedForARepeat(t *testing.T) {
	c := newCluster(t, 1)
	s, _ := openCluster(t, c, openToServe)
	for range 3 { // on connections that were used before, and on a new one
		mustCreate(t, s, rex)
		c.arrived()
		answerOnce(c, reset)
		wantError(t, errorOf(s.createPet(1, rex)), errOutcome, "the write")
		c.wantArrived(writeTo(0))
	}
}

// TestTheServiceOnAGarbledEngine is 503, or 500 if the values are garbled, and never a success.
// What is listed in the end is what was acknowledged, and all requests are counted.
func TestTheServiceOnAGarbledEngine(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	garbage := garbledAnswers()
	garbage["no leader"] = respond(503, "leader not found\n")
	garbage["no identity"] = respond(200, `{"results":[{"error":"out of memory"}]}`)
	for what, results := range map[string]string{
		"results with nothing in them":        `{}`,
		"empty results for more statements":   `{},{},{}`,
		"values that are null":                `{"values":[[null,null,null]]}`,
		"values of the wrong types":           `{"values":[[1,"2",[]]]}`,
		"a flag that is a text":               `{"values":[["[]",0,"maybe"]]}`,
		"a flag that is neither true nor not": `{"values":[["[]",0,2]]}`,
		"too few values":                      `{"values":[["[]"]]}`,
	} {
		garbage["values: "+what] = respond(200, `{"results":[{},`+results+`]}`) // {} of the guard
	}
	for what, answer := range garbage {
		hasValues := strings.HasPrefix(what, "values: ") // some may be a pet, or none
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			shop := newClusterShop(t, c, s)
			shop.list().is(200).says("[]")
			c.always("/db/", answer)
			replies := []reply{
				shop.list(),
				shop.post(rexBody),
				shop.post("Idempotency-Key: once", rexBody),
				shop.get("/v1/pets?status=sold"),
			}
			if !hasValues {
				replies = append(replies, shop.get("/v1/pets/1"))
			}
			for _, reply := range replies {
				if reply.status != 503 && (!hasValues || reply.status != 500) {
					t.Errorf("%s is %d %s", reply.what, reply.status, reply.body)
				}
			}
			if err := shop.service.ledger.flush(t.Context(), time.Now, false); err == nil {
				t.Error("the usage is said to be written")
			}
			wantCount(t, c.log.String(), "panic", 0, "the log")
			c.when(nil)
			shop.list().is(200).says("[]")
			must(t, shop.service.ledger.flush(t.Context(), time.Now, false))
			wantEqual(t, c.number("SELECT day_used FROM usage"), int64(len(replies)+2),
				"the number of requests that are counted")
		}))
	}
}

// newClusterShop is a service on a store of a cluster, and a client of it.
func newClusterShop(t *testing.T, c *fakeCluster, s *store) *shop {
	t.Helper()
	key := mustInsertKey(t, s, apiKey{Plan: "pro", CreatedAt: instantOf(time.Now())})
	log := newLogger(c.log, "json", slog.LevelInfo)
	return &shop{
		t:       t,
		service: newService(s, settings{}, log),
		key:     string(key),
	}
}

// TestWhatSurelyDidNothingIsRepeatedAtTheNextLeader, and the log says who leads.
func TestWhatSurelyDidNothingIsRepeatedAtTheNextLeader(t *testing.T) {
	for what, answer := range map[string]fakeAnswer{
		"refused connections":        nil,
		"no leader":                  respond(503, "leader not found\n"),
		"no leader, the other error": respond(500, "leader not found\n"),
	} {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			for i, next := range []int{1, 2, 0} {
				lost := c.nodes[c.leader]
				want := []string{writeTo(next)}
				if answer == nil {
					lost.setDown(true)
				} else {
					answerOnce(c, answer)
					want = []string{writeTo(lost.number), writeTo(next)}
				}
				c.lead(next)
				wantNextID(t, s, int64(i+1))
				c.wantArrived(want...)
				c.wantInUse(s, next, lost.number)
				lost.setDown(false)
			}
			wantEqual(t, clusterEngine(s).unknown.Load(), 0, "the number of unknown outcomes")
		}))
	}
}

// wantInUse checks that a store uses one node and that its log says so.
func (c *fakeCluster) wantInUse(s *store, number, before int) {
	c.t.Helper()
	url := func(number int) string { return "http://" + c.nodes[number].host }
	line := fmt.Sprintf(`"msg":"another node is in use","node":%q,"before":%q`,
		url(number), url(before))
	_, node := s.engine.describe()
	if node != url(number) || !strings.Contains(c.log.String(), line) {
		c.t.Errorf("in use is %s, and the log says %s, want %s", node, c.log, line)
	}
}

// TestALeaderThatIsDownAndStillNamed by the others is waited for, or for its successor: through
// them nothing would arrive.
func TestALeaderThatIsDownAndStillNamed(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.nodes[0].setDown(true)
		const election = 2 * time.Second
		time.AfterFunc(election, func() { c.lead(2) })
		c.wantFailover(s, 2, election)
	})
}

// wantFailover checks that a write reaches a node soon after its election.
func (c *fakeCluster) wantFailover(s *store, through int, election time.Duration) {
	c.t.Helper()
	start := time.Now()
	mustCreate(c.t, s, rex)
	wantWithin(c.t, time.Since(start), election, election+2*leaderPoll,
		"the time of the write")
	c.wantArrived(writeTo(through))
}

// TestWhatAnotherNodeHasShownIsForgotten once: it may have led beside the one that responds now,
// and have shown pets that nobody keeps.
func TestWhatAnotherNodeHasShownIsForgotten(t *testing.T) {
	for what, lose := range map[string]func(n *fakeNode){
		"a node that is lost":                          func(n *fakeNode) { n.setDown(true) },
		"a node that passes requests on to the leader": func(*fakeNode) {},
	} {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			mustCreate(t, s, rex)
			// shows looks for edits as often as a service does, and wants the name of the pet.
			shows := func(name, when string) {
				t.Helper()
				for range 3 {
					must(t, s.refresh(t.Context()))
				}
				p, err := s.pet(1)
				must(t, err)
				wantPart(t, string(p.body), name, "with ", what, ", ", when, ", the pet")
			}
			shows("Rex", "before")
			c.exec("UPDATE pets SET name = 'Ada'") // which is no edit
			shows("Rex", "while the same node responds")
			c.lead(1)
			lose(c.nodes[0])
			shows("Ada", "when another node responds")
			c.exec("UPDATE pets SET name = 'Ida'")
			shows("Ada", "after that")
		}))
	}
}

// TestConnectionsThatAreForgottenCostOneWrite: a firewall was restarted, and what is sent on the
// connections that there were vanishes. New ones work.
func TestConnectionsThatAreForgottenCostOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections = 8
		var forgotten atomic.Bool
		together := make(chan struct{}) // else the writes would share a connection
		e := onPipes(t, func(server net.Conn) {
			isOld := !forgotten.Load()
			from := bufio.NewReader(server)
			for {
				r, err := http.ReadRequest(from)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if isOld && forgotten.Load() {
					continue
				}
				<-together
				_, _ = io.WriteString(server,
					"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n"+`{"results":[{}]}`)
			}
		})
		e.locating <- struct{}{} // nobody asks for a status
		write := writing(storeOn(e), sqlOf("DELETE FROM usage"))
		var clients sync.WaitGroup
		for range connections {
			clients.Go(func() {
				must(t, errorOf(e.write(t.Context(), []statement{sqlOf("DELETE FROM usage")})))
			})
		}
		synctest.Wait()
		close(together)
		clients.Wait()

		forgotten.Store(true)
		wantError(t, write(), errOutcome, "the first write")
		for range connections {
			must(t, write())
		}
	})
}

// TestAllTablesAreCompared by the statements with which operators compare what the nodes hold.
func TestAllTablesAreCompared(t *testing.T) {
	var statements []string
	must(t, json.Unmarshal([]byte(readText(t, "docs/deploy/compare.json")), &statements))
	s := openDatabase(t, databasePath(t))
	for _, st := range statements {
		must(t, s.read(t.Context(), sqlOf(st), func(scanner) error { return nil }))
	}
	var tables int
	query := sqlOf("SELECT name FROM sqlite_master WHERE type = 'table'")
	must(t, s.read(t.Context(), query, func(scan scanner) error {
		var name string
		tables++
		err := scan(&name)
		wantCount(t, strings.Join(statements, "; ")+" ", "FROM "+name+" ", 1, "what is compared")
		return err
	}))
	wantEqual(t, len(statements), tables, "the number of statements")
}

// TestAWriteAfterATimeoutGoesToTheNewLeaderAtOnce: the one that timed out on the frozen leader has
// found it.
func TestAWriteAfterATimeoutGoesToTheNewLeaderAtOnce(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.freeze(0)
		c.lead(1)
		wantError(t, errorOf(s.createPet(1, rex)), errOutcome, "the write to the frozen leader")
		c.arrived()
		c.wantFailover(s, 1, 0)
	})
}

// TestACommandFindsTheNextLeader in the place of one that is frozen. To a command that begins then,
// the other nodes name the frozen one for a while, and would pass requests on to it.
func TestACommandFindsTheNextLeader(t *testing.T) {
	const election = 2 * time.Second
	for what, freezesFirst := range map[string]bool{"one that reads": false, "a start": true} {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, _ *store) {
			e := c.engine(openExisting, testLog)
			freeze := func() {
				c.freeze(0)
				time.AfterFunc(election, func() { c.lead(1) })
			}
			if freezesFirst {
				freeze()
			}
			wantTime(t, "the start", 0, commandWait-time.Second, nil, func() error {
				if err := e.connect(t.Context()); err != nil {
					return err
				}
				return errorOf(prepareSchema(t.Context(), e, openExisting))
			})
			if !freezesFirst {
				freeze()
			}
			read := func() error {
				return storeOn(e).readable(t.Context())
			}
			wantTime(t, "a read", 0, commandWait-time.Second, nil, read)
			c.lead(-1)
			const long = 9 * time.Second
			time.AfterFunc(long, func() { c.lead(2) })
			wantTime(t, "a read in a long election", long, commandWait, nil, read)
		}))
	}
}

// TestNobodyQueuesForTheLeaderForLong: all who wait are told in time, however many they are.
func TestNobodyQueuesForTheLeaderForLong(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		c.freeze(0, 1, 2)
		const oneWait = leaderWait + statusWait
		var waiting sync.WaitGroup
		for i := range 500 {
			waiting.Go(func() {
				wantTime(t, "a read", 0, oneWait, errUnavailable, func() error {
					return s.readable(t.Context())
				})
			})
			if i%10 == 0 {
				waiting.Go(func() {
					wantTime(t, "a create", 0, 2*oneWait, errUnavailable, creating(s, "Rex"))
				})
			}
			time.Sleep(20 * time.Millisecond)
		}
		waiting.Wait()
	})
}

// TestAStopEndsTheWaitForANode at once, whatever waits: see TestAStopEndsAStartThatWaitsForANode. A
// key that may be stored and was not shown
// is tried to be taken back, for takeBackWait.
func TestAStopEndsTheWaitForANode(t *testing.T) {
	for what, wait := range map[string]struct {
		do   func(ctx context.Context, s *store) error
		most time.Duration
	}{
		"to store a key": {
			func(ctx context.Context, s *store) error {
				process := &process{stdout: io.Discard}
				return keyCreate(ctx, &invocation{process: process, log: testLog, store: s})
			}, takeBackWait,
		},
		"to back up": {
			func(ctx context.Context, s *store) error {
				return clusterEngine(s).backup(ctx, io.Discard)
			}, 0,
		},
		"for another who looks for the leader": {
			func(ctx context.Context, s *store) error {
				clusterEngine(s).locating <- struct{}{}
				return s.readable(ctx)
			}, 0,
		},
	} {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			c.freeze(0, 1, 2)
			clusterEngine(s).inUse.Store(clusterEngine(s).nodes[0])
			ctx, stop := context.WithCancel(t.Context())
			const begins = time.Second / 2
			time.AfterFunc(begins, stop)
			start := time.Now()
			_ = wait.do(ctx, s)
			wantWithin(t, time.Since(start)-begins, 0, wait.most, "the time after the stop")
		}))
	}
}

// TestAFailoverWaitsForNoFrozenThirdNode: the next leader is elected a moment later, and is perhaps
// none of the nodes that were named.
func TestAFailoverWaitsForNoFrozenThirdNode(t *testing.T) {
	for what, leader := range map[string]int{
		"a leader that is named":     1,
		"a leader that is not named": 3,
	} {
		t.Run(what, bubble(func(t *testing.T) {
			c := newClusterWithoutNetwork(t, 4)
			unnamed := c.nodes[3]
			c.nodes = c.nodes[:3]
			s, _ := newClusterStore(t, c)
			c.nodes = append(c.nodes, unnamed)
			c.freeze(2)
			c.nodes[0].setDown(true)
			c.lead(-1)
			const election = 50 * time.Millisecond
			time.AfterFunc(election, func() { c.lead(leader) })
			c.wantFailover(s, 1, election)
		}))
	}
}

// TestWithoutALeader what is remembered is served at once, and the rest fails within five seconds,
// whatever the nodes do meanwhile.
func TestWithoutALeader(t *testing.T) {
	searching := func(d time.Duration) fakeAnswer {
		return func(n *fakeNode, w http.ResponseWriter, r *http.Request) {
			pause(r.Context(), d)
			respond(503, "leader not found\n")(n, w, r)
		}
	}
	for what, answer := range map[string]fakeAnswer{
		"nodes that say so at once":         searching(0),
		"nodes that look for one for three": searching(3 * time.Second),
		"nodes that are frozen":             searching(time.Hour),
		"nodes that are down":               nil,
	} {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			for range 3 {
				mustCreate(t, s, rex)
			}
			cached := func() error {
				_, err := s.page("", 2, 0)
				return err
			}
			list := func() error {
				_, err := s.page("", 20, 0)
				return err
			}
			create := func() error {
				_, err := s.createPet(1, rex)
				return err
			}
			must(t, cached())
			c.lead(-1)
			c.allDown(answer == nil)
			c.always("/db/", answer)
			const least, most = 2 * time.Second, 5 * time.Second
			wantTime(t, "a page that is cached", 0, 0, nil, cached)
			var reading sync.WaitGroup
			for range 4 {
				reading.Go(func() {
					wantTime(t, "a short page", least, most, errUnavailable, list)
				})
			}
			reading.Wait()
			wantTime(t, "a create", least, most, errUnavailable, create)
			time.AfterFunc(time.Second, func() {
				c.when(nil)
				c.allDown(false)
				c.lead(2)
			})
			wantTime(t, "a page that is in time", time.Second, 3*time.Second, nil, list)
		}))
	}
}

func (c *fakeCluster) allDown(down bool) {
	for _, n := range c.nodes {
		n.setDown(down)
	}
}

// wantTime checks how long something takes, and its error.
func wantTime(t testing.TB, what string, least, most time.Duration, want error, do func() error) {
	t.Helper()
	start := time.Now()
	err := do()
	took := time.Since(start)
	if took < least || took > most || !errors.Is(err, want) {
		t.Errorf("%s takes %v and says %v", what, took, err)
	}
}

// TestAnUnreachableClusterIsWaitedFor for ten seconds, in which it may come up.
func TestAnUnreachableClusterIsWaitedFor(t *testing.T) {
	for what, prepare := range map[string]func(c *fakeCluster){
		"nodes that are down":       func(c *fakeCluster) { c.allDown(true) },
		"nodes without a leader":    func(c *fakeCluster) { c.lead(-1) },
		"nodes that do not respond": func(c *fakeCluster) { c.freeze(0, 1) },
	} {
		t.Run(what, bubble(func(t *testing.T) {
			c := newClusterWithoutNetwork(t, 2)
			e := c.engine(openExisting, testLog)
			connect := func() error {
				return e.connect(t.Context())
			}
			prepare(c)
			start := time.Now()
			err := connect()
			if took := time.Since(start); err == nil || took != commandWait {
				t.Errorf("after %v: %v", took, err)
			}
			time.AfterFunc(5*time.Second, func() {
				c.when(nil)
				c.allDown(false)
				c.lead(0)
			})
			wantTime(t, "a cluster that comes up", 5*time.Second, 7*time.Second, nil, connect)
		}))
	}
}

// TestALeaderThatIsNotNamedIsReachedThroughAFollower, which stays in use until a request to it
// fails: a change would give up requests that run, and fill the log.
func TestALeaderThatIsNotNamedIsReachedThroughAFollower(t *testing.T) {
	c := newCluster(t, 3)
	openCluster(t, c, openOrMake)
	c.lead(2)
	s, log := openClusterAt(t, c.addresses(0, 1), openToServe)
	mustCreate(t, s, rex)
	_, follower := s.engine.describe()
	c.lead(1)
	must(t, s.refresh(t.Context()))
	wantPets(t, s, 1)
	if _, node := s.engine.describe(); node != follower || log.String() != "" {
		t.Errorf("in use is %s and was %s; the log says %s", node, follower, log)
	}
}

// TestAnOldNodeThatLeadsLaterIsNotReadThrough the others: it would answer with what is out of date.
func TestAnOldNodeThatLeadsLaterIsNotReadThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWithoutNetwork(t, 3)
		c.nodes[2].version = "v8.26.8"
		c.nodes[2].setDown(true)
		s, _ := newClusterStore(t, c)
		c.nodes[2].setDown(false)
		c.nodes[0].setDown(true)
		c.lead(2)
		wantError(t, errorOf(s.page("", 20, 0)), errUnavailable, "a read")
		c.wantArrived()
	})
}

// otherDatabases are what nodes may hold in the place of the database that was opened.
func otherDatabases(t *testing.T) map[string]string {
	t.Helper()
	others := map[string]string{}
	for what, statements := range map[string][]string{
		"nothing":             {"PRAGMA journal_mode=WAL"},
		"an older petstore's": schemaOf(4),
		"another program's":   {"CREATE TABLE pets (name)", "PRAGMA application_id = 7"},
	} {
		others[what] = databasePath(t)
		makeOtherDatabase(t, others[what], statements...)
	}
	others["a petstore's"], _ = fileToCopy(t)
	return others
}

// TestAServiceThatMeetsAnotherDatabaseStopsForGood: it shows nothing, writes nothing, and says so,
// also when the first database is back, and also if there was no leader before.
func TestAServiceThatMeetsAnotherDatabaseStopsForGood(t *testing.T) {
	for what, other := range otherDatabases(t) {
		t.Run(what, clustered(func(t *testing.T, c *fakeCluster, s *store) {
			shop := newClusterShop(t, c, s)
			mustCreate(t, s, rex)
			mustCreate(t, s, rex)
			mustCreate(t, s, rex)
			stop := runBackground(shop.service, newOperator(shop.service), nil)
			shop.get("/v1/pets?limit=2").lists(1, 2) // which is remembered, and so is the key
			shop.get("/readyz").is(200)
			c.lead(-1)
			time.Sleep(time.Second)
			shop.get("/v1/pets?limit=2").lists(1, 2)

			first := c.path
			for _, path := range []string{other, first} {
				c.mu.Lock()
				c.swap(path)
				c.mu.Unlock()
				c.lead(0)
				time.Sleep(5 * time.Second)
				shop.talk(`
					GET /v1/pets?limit=2
					503

					GET /v1/pets/1
					503

					POST /v1/pets
					={"name":"Rex","categoryId":1}
					503

					GET /readyz
					503`)
				wantEqual(t, c.number("SELECT total_changes()"), 0,
					"the number of rows that are changed in ", path)
			}
			wantTime(t, "the stop", 0, 0, errOtherDatabase, stop)
			wantCount(t, c.log.String(), `"msg":"stopped for good"`, 1, "the log")
		}))
	}
}

// TestWhatRunsGoesOverToNoOtherCluster, and a start on nodes of two is refused, be it a command's.
func TestWhatRunsGoesOverToNoOtherCluster(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for what, isUsed := range map[string]bool{"empty": false, "used": true} {
		t.Run(what, func(t *testing.T) {
			one, other := newCluster(t, 1), newCluster(t, 2)
			addresses := one.addresses() + "," + other.addresses()
			if isUsed {
				openCluster(t, other, openOrMake)
			}
			for _, n := range other.nodes {
				n.stop()
			}
			s, _ := openClusterAt(t, addresses, openToServe)
			mustCreate(t, s, rex)
			for _, n := range other.nodes {
				n.start()
			}
			mustFail(t, addresses, "key create", false, "cannot open the database",
				"is another than that of")

			one.nodes[0].stop()
			before := other.number("SELECT total_changes()")
			errs := []error{
				errorOf(s.page("", 1, 0)), // first: a write may still meet a connection that breaks
				errorOf(s.createPet(1, rex)),
				errorOf(s.edit(t.Context(), revokeKey(1, 1))),
			}
			for _, err := range errs {
				if !errors.Is(err, errOtherDatabase) || errors.Is(err, errOutcome) {
					t.Errorf("the error is %v", err)
				}
			}
			wantEqual(t, other.number("SELECT total_changes()"), before,
				"the number of changed rows of the other cluster")
		})
	}
}

// TestNodesOfTwoClustersAreRefusedUnchanged, in either order, whichever of them is found first.
func TestNodesOfTwoClustersAreRefusedUnchanged(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	file, _ := fileToCopy(t)
	held := otherDatabases(t)
	for _, pair := range [][]string{
		{"a petstore's", "nothing"},
		{"a petstore's", "an older petstore's"},
		{"an older petstore's", "nothing"},
		{"an older petstore's", "another program's"},
	} {
		for run := range 4 {
			t.Run(fmt.Sprint(pair, run), func(t *testing.T) {
				t.Parallel()
				clusters := []*fakeCluster{newCluster(t, 1), newCluster(t, 2)}
				for i, c := range clusters {
					hold(c, held[pair[(i+run)%2]])
				}
				addresses := clusters[0].addresses() + "," + clusters[1].addresses()
				mustFail(t, addresses, "restore "+file, false)
				mustFail(t, addresses, "key list", false)
				wantUnchanged(t, clusters...)
			})
		}
	}
}

// TestTwoEmptyClustersAreToldApart at the start of a service, once one of them has its schema.
func TestTwoEmptyClustersAreToldApart(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	addresses := newCluster(t, 1).addresses() + "," + newCluster(t, 2).addresses()
	wantNotOpened(t, addresses, openToServe, "is another than that of")
}

// TestANodeThatDoesNotAgreeHasToAnswer, unlike one that never does.
func TestANodeThatDoesNotAgreeHasToAnswer(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for what, answers := range map[string]int64{"one that did not agree": 2,
		"one that never did": 0} {
		t.Run(what, func(t *testing.T) {
			file, _ := fileToCopy(t)
			one, other := newCluster(t, 1), newCluster(t, 1)
			openCluster(t, one, openOrMake)
			hold(other, file)
			other.lead(-1) // so that the node of one is in use
			var asked atomic.Int64
			other.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/status" || asked.Add(1) > answers {
					return false
				}
				defer other.lock()()
				other.statements(w, r)
				return true
			})
			addresses := one.addresses() + "," + other.addresses()
			_, err := openStore(t.Context(), addresses, openToServe, testLog)
			wantEqual(t, err != nil, answers > 0, "whether the start is refused, with ", err, ",")
		})
	}
}

// TestASlowNodeIsNotPassedOver when nodes are compared: it has the whole second to answer.
func TestASlowNodeIsNotPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterWithoutNetwork(t, 1)
		e := c.engine(openExisting, testLog)
		must(t, e.connect(t.Context()))
		c.before("/", func(r *http.Request) { pause(r.Context(), statusWait*7/10) })
		must(t, errorOf(e.only(e.responding[0]).identify(t.Context())))
	})
}

// TestALoadAsksTheNodeThatIsFoundLast, which may be of another cluster than the one before, and all
// others, which have to answer.
func TestALoadAsksTheNodeThatIsFoundLast(t *testing.T) {
	takesSeconds(t)
	t.Parallel()
	for what, want := range map[string]string{
		"used":  "it holds or held pets or keys",
		"empty": "leader not found", // of the first cluster
	} {
		t.Run(what, func(t *testing.T) {
			file, _ := fileToCopy(t)
			one, other := newCluster(t, 1), newCluster(t, 1)
			if what == "used" {
				hold(other, file)
			}
			other.nodes[0].stop()
			urls := nodeURLs(one.addresses() + "," + other.addresses())
			e, err := openRqlite(t.Context(), urls, openExisting, testLog)
			must(t, err)
			defer e.Close()
			other.nodes[0].start()
			one.lead(-1)
			err = e.load(t.Context(), strings.NewReader(readText(t, file)), 1)
			wantOneLine(t, err, false, want)
			wantUnchanged(t, one, other)
		})
	}
}

// hold puts a copy of a file behind the nodes.
func hold(c *fakeCluster, file string) {
	path := databasePath(c.t)
	writeText(c.t, path, readText(c.t, file))
	defer c.lock()()
	c.swap(path)
}

// wantUnchanged checks that clusters were only asked.
func wantUnchanged(t *testing.T, clusters ...*fakeCluster) {
	t.Helper()
	for _, c := range clusters {
		for _, request := range c.arrived() {
			wantPart(t, request, "/db/query?", "what was sent")
		}
	}
}

// TestAMigrationBetweenTwoAnswersMakesNoTwoClusters: the last of three nodes answers after it.
func TestAMigrationBetweenTwoAnswersMakesNoTwoClusters(t *testing.T) {
	c := newCluster(t, 3)
	var answered sync.WaitGroup
	answered.Add(2)
	var asked [3]atomic.Int64 // by node
	var migrated atomic.Int64
	c.when(func(n *fakeNode, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/db/query" || asked[n.number].Add(1) > 1 {
			return false
		}
		if n.number != 2 {
			defer c.lock()()
			n.serve(w, r)
			answered.Done()
			return true
		}
		answered.Wait()
		migrated.Add(1)
		defer c.lock()()
		for _, st := range upgrade(0, 7) {
			c.mustExec(st.query, st.args...)
		}
		return false
	})
	s, _ := openCluster(t, c, openOrMake)
	if id := clusterEngine(s).identity; id != 7 || migrated.Load() != 1 {
		t.Errorf("the identity is %d after %d migrations", id, migrated.Load())
	}
}

// TestAnUpgradeKeepsTheIdentity, since services go on beside it.
func TestAnUpgradeKeepsTheIdentity(t *testing.T) {
	s := newStore(t)
	before := readNumber(t, s, identityQuery)
	mustWrite(t, s, upgrade(len(migrations), before/2+1)[1:]...) // [0] is empty
	wantEqual(t, readNumber(t, s, identityQuery), before, "the identity")
}

// TestEachRestoreMakesAnotherDatabase, into a file and into a cluster, of copies of all versions.
func TestEachRestoreMakesAnotherDatabase(t *testing.T) {
	takesSeconds(t)
	seen := map[int64]bool{}
	note := func(identity int64) {
		t.Helper()
		if identity < 1 || seen[identity] {
			t.Errorf("the identity %d is seen again, or none", identity)
		}
		seen[identity] = true
	}
	present, _ := fileToCopy(t)
	copies := []string{present}
	note(readNumber(t, openDatabase(t, present), identityQuery))
	for version := 1; version < len(migrations); version++ {
		copied := databasePath(t)
		makeOtherDatabase(t, copied, schemaOf(version)...)
		copies = append(copies, copied)
	}
	for _, copied := range copies {
		file := databasePath(t)
		for range 2 {
			mustSay(t, file, "restore "+copied)
			s := openDatabase(t, file)
			note(readNumber(t, s, identityQuery))
			must(t, s.Close())
			c := newCluster(t, 1)
			mustSay(t, c.addresses(), "restore "+copied)
			note(c.number(identityQuery))
		}
	}
}

// fileToCopy is a file with three pets, one of them under an Idempotency-Key, and a key.
func fileToCopy(t testing.TB) (file string, token secret) {
	t.Helper()
	file = databasePath(t)
	s := openDatabase(t, file)
	token = mustInsertKey(t, s, apiKey{Name: "shop"})
	mustCreate(t, s, rex)
	mustCreate(t, s, rex)
	createOnce(t, s, 1, "Tom", testTime)
	must(t, s.Close())
	return file, token
}

// wantCopied checks that a store has what fileToCopy has made, and where its ids go on.
func wantCopied(t testing.TB, s *store, token secret, next int64) {
	t.Helper()
	wantIDs(t, s, 1, 2, 3)
	wantEqual(t, mustAuthenticate(t, newKeyring(s, false), token, testTime).Name, "shop",
		"the name of the key")
	wantEqual(t, createOnce(t, s, 1, "Tom", testTime), "replayed 3", "a repeat")
	wantNextID(t, s, next)
}

// TestAFileGrowsIntoAClusterAndBack with all that it holds. While a node loads the copy, which
// takes the most time, a kill leaves none.
func TestAFileGrowsIntoAClusterAndBack(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	c := newCluster(t, 3)
	c.lead(1)
	c.before("/db/load", func(*http.Request) {
		left, _ := filepath.Glob(folder + "/petstore-*")
		if len(left) > 0 && runtime.GOOS != "windows" {
			t.Errorf("%q are there while the copy is loaded", left)
		}
	})
	file, token := fileToCopy(t)
	mustSay(t, c.addresses(), "restore -skip-ids 1000 "+file,
		`"msg":"database restored"`, `"old":""`)
	s, _ := openCluster(t, c, openToServe)
	wantCopied(t, s, token, 1004)
	c.exec("DELETE FROM pets WHERE id > 3")
	back := filepath.Join(t.TempDir(), "back.db")
	mustSay(t, c.addresses(), "backup -skip-ids 10 "+back)
	wantCopied(t, openDatabaseFor(t, back, openToServe), token, 1015)
}

// TestTheCopyOfAClusterMovesItsIDsOn, since the cluster goes on giving out its own, unless it is
// given up.
func TestTheCopyOfAClusterMovesItsIDsOn(t *testing.T) {
	c := newCluster(t, 1)
	s, _ := openCluster(t, c, openOrMake)
	mustCreate(t, s, rex)
	dir := t.TempDir()
	mustSay(t, c.addresses(), "backup "+dir+"/a")
	mustSay(t, c.addresses(), "backup -skip-ids 0 "+dir+"/b")
	for file, want := range map[string]int64{"a": 1_000_002, "b": 2} {
		wantNextIDs(t, filepath.Join(dir, file), want, want-1)
	}
}

// TestRestoreToAClusterIsRefused where it would take something away.
func TestRestoreToAClusterIsRefused(t *testing.T) {
	const used = "it holds or held pets or keys, and nothing is overwritten; start nodes with " +
		"empty folders, and restore before a service starts on them"
	const pet = "INSERT OR REPLACE INTO pets (id, category_id, status, name) " +
		"VALUES (1, 1, 2, 'old')"
	for what, refused := range map[string]struct {
		before    string // what is done to the cluster
		meanwhile string // and what while the copy is checked
		want      string
	}{
		"a pet":                            {pet, "", used},
		"the id of a pet that was deleted": {pet + "; DELETE FROM pets", "", used},
		"a key, as a service makes it at its first start": {
			"INSERT INTO sqlite_sequence (name, seq) VALUES ('api_keys', 1)", "", used,
		},
		"a pet that comes meanwhile":  {"", pet, used},
		"the data of another program": {"PRAGMA application_id = 7", "", "another program"},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			openCluster(t, c, openOrMake)
			c.exec(refused.before)
			c.before("/db/query", func(*http.Request) { c.exec(refused.meanwhile) })
			file, _ := fileToCopy(t)
			mustFail(t, c.addresses(), "restore "+file, false,
				"cannot restore "+c.addresses()+" from "+file, refused.want)
			wantEqual(t, c.number("SELECT count(*) FROM pets WHERE name <> 'old'"), 0,
				"the number of pets that are restored")
			wantNames(t, filepath.Dir(file), "pets.db")
		})
	}
}

// TestALoadThatFailsIsNoSuccess, however the node puts it, and can be run again.
func TestALoadThatFailsIsNoSuccess(t *testing.T) {
	for what, answer := range map[string]fakeAnswer{
		"an error":             respond(200, `{"error":"leadership lost while committing log"}`),
		"an error of SQL":      respond(200, `{"results":[{"error":"syntax error"}]}`),
		"success, and no data": respond(200, `{"results":[]}`),
		"no leader":            respond(503, "leader not found\n"),
		"a reset":              reset,
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3)
			file, token := fileToCopy(t)
			c.always("/db/load", answer)
			mustFail(t, c.addresses(), "restore "+file, false,
				"cannot restore "+c.addresses()+" from "+file)
			c.when(nil)
			mustSay(t, c.addresses(), "restore -skip-ids 0 "+file)
			s, _ := openCluster(t, c, openToServe)
			wantCopied(t, s, token, 4)
		})
	}
}

// TestANodeMayTakeMinutesForACopy, in both directions. One that sends nothing of a backup for 15 s
// is given up.
func TestANodeMayTakeMinutesForACopy(t *testing.T) {
	for what, c := range map[string]struct {
		parts int // one every 14 seconds
		takes time.Duration
		says  string
	}{
		"one that sends slowly":         {20, (14 + 20*20) * time.Second, "<nil>"},
		"one that goes silent":          {3, (14 + 3*20 + 15) * time.Second, "nothing for 15s"},
		"one that is silent from start": {0, 15 * time.Second, "nothing for 15s"},
	} {
		t.Run(what, bubble(func(t *testing.T) {
			e := onPipe(t, func(w io.Writer) {
				for i := range c.parts {
					time.Sleep(14 * time.Second)
					if i == 0 {
						_, _ = io.WriteString(w,
							"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
					}
					_, _ = io.WriteString(w, ".")
				}
			})
			slowDisk := writerFunc(func(p []byte) (int, error) {
				time.Sleep(20 * time.Second)
				return len(p), nil
			})
			start := time.Now()
			err := e.backup(t.Context(), slowDisk)
			wantPart(t, fmt.Sprint(err), c.says, "the error")
			wantEqual(t, time.Since(start), c.takes, "the time that it takes")
		}))
	}
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		const takes = 5 * time.Minute
		var copied bytes.Buffer
		e := clusterEngine(s)
		must(t, e.backup(t.Context(), &copied))
		c.before("/db/load", func(*http.Request) { time.Sleep(takes) })
		wantTime(t, "the load", takes, takes, nil, func() error {
			return e.load(t.Context(), &copied, e.identity)
		})
	})
}

// onPipe is an engine whose one node responds as it likes to each request, and then goes silent.
func onPipe(t *testing.T, respond func(w io.Writer)) *rqlite {
	return onPipes(t, func(server net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(server))
		respond(server)
		_, _ = io.Copy(io.Discard, server) // until the client leaves
	})
}

// onPipes is an engine whose one node serves each connection as it likes. The two share no buffer.
func onPipes(t *testing.T, serve func(server net.Conn)) *rqlite {
	e := newRqlite(nodeURLs("http://node0:4001"), openToServe, testLog)
	t.Cleanup(func() { _ = e.Close() })
	e.inUse.Store(e.nodes[0])
	e.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (
		net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			serve(server)
			_ = server.Close()
		}()
		return client, nil
	}
	return e
}

// TestRestoreToAClusterMayBeStoppedAtAnyTime: then nothing is loaded, or all of it.
func TestRestoreToAClusterMayBeStoppedAtAnyTime(t *testing.T) {
	takesSeconds(t)
	for what, stop := range unknownOutcomes {
		t.Run(what, func(t *testing.T) {
			file, _ := fileToCopy(t)
			stopped := true
			for n := int64(1); stopped && !t.Failed(); n++ {
				c := newCluster(t, 1)
				args := []string{"restore", "-db", c.addresses(), file}
				ctx, cancel := context.WithCancel(t.Context())
				c.answerNth(n, func(node *fakeNode, w http.ResponseWriter, r *http.Request) {
					cancel()
					stop(node, w, r)
				})
				err := run(ctx, args, nil, nil, io.Discard, io.Discard)
				cancel()
				stopped = err != nil
				c.when(nil)
				// It is refused if the copy was loaded all the same.
				again := run(t.Context(), args, nil, nil, io.Discard, io.Discard)
				if c.number("SELECT count(*) FROM pets") != 3 {
					t.Errorf("stopped at request %d it says %v, and then %v", n, err, again)
				}
			}
		})
	}
}
