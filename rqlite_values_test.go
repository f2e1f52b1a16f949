package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"testing"
)

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
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		for _, text := range []string{
			`x'41'`, `X'41'`, `x''`, ` x'41' `, `x'4'`, `'); DROP TABLE pets; --`,
			`" OR 1 = 1; --`, `?1`, `:name`, `$.name`, `'$'`, `{"name":"Rex"}`, `["Rex"]`, `[]`,
			`"Rex"`, `"`, `\`, `\u0041`, `\"`, `null`, `true`, `0`, `-1`, `1e3`,
			`9007199254740993`, `<b>&amp;</b>`, "\u2028", "Zoë 🐶", "%", "_", "NULL", "json('1')",
		} {
			named := NewPet{text, 1, Sold}
			id := mustCreate(t, s, named)
			if pet := readPet(t, s, id); pet.Name != text || pet.ID != id {
				t.Errorf("%q is %+v", text, pet)
			}
			for _, isRepeat := range []bool{false, true} {
				again, replayed, reused, err := s.createPetOnce(named, 1, text, []byte(text),
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
				if key.Name != text {
					t.Errorf("a key %q is named %q", text, key.Name)
				}
			}
		}
		const wrong = "SELECT count(*) FROM pets WHERE typeof(name) <> 'text'"
		if n := readNumber(t, s, wrong); n != 0 {
			t.Errorf("%d names are no texts", n)
		}
	})
}

// TestIntegersOf64BitsArriveExactly on their way in and out.
func TestIntegersOf64BitsArriveExactly(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		const first = int64(1<<62 + 1)
		must(t, errorOf(s.write(t.Context(),
			sqlOf("INSERT INTO sqlite_sequence (name, seq) VALUES ('pets', ?)", first-1))))
		for id := first; id < first+4; id++ {
			wantNextID(t, s, id)
			if pet := readPet(t, s, id); pet != (Pet{id, rex}) {
				t.Errorf("pet %d is %+v", id, pet)
			}
		}
		ids, p := pageIDs(t, s, "", 2, first)
		if !slices.Equal(ids, []int64{first + 1, first + 2}) || p.last != first+2 || !p.more {
			t.Errorf("the page is %v, its last %d", ids, p.last)
		}
	})
}

// TestThreeServicesMigrateAtTheSameMoment: the first does it, and all of them run.
func TestThreeServicesMigrateAtTheSameMoment(t *testing.T) {
	for version := range migrations {
		t.Run(fmt.Sprint("from version ", version), func(t *testing.T) {
			c := newCluster(t, 3)
			if version > 0 {
				c.exec(migrations[:version]...)
				c.exec(applicationMark, fmt.Sprint("PRAGMA user_version = ", version))
			}
			var arrived, opening sync.WaitGroup
			arrived.Add(3)
			c.when(func(_ *fakeNode, _ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/db/execute" { // three have found the old version
					arrived.Done()
					arrived.Wait()
				}
				return false
			})
			for range 3 {
				opening.Go(func() {
					s, err := openStore(t.Context(), c.addresses(), openToServe, testLog)
					if err != nil {
						t.Error(err)
						return
					}
					must(t, s.Close())
				})
			}
			opening.Wait()
			if marks := c.marks(); marks[1] != int64(len(migrations)) {
				t.Errorf("the schema is version %d", marks[1])
			}
		})
	}
}

// TestAnotherServicesPetsAreListedAtOnce: only what has more behind it is remembered.
func TestAnotherServicesPetsAreListedAtOnce(t *testing.T) {
	c := newCluster(t, 3)
	s, _ := openCluster(t, c, openToServe)
	other, _ := openCluster(t, c, openToServe)
	for n := range 4 {
		ids, p := pageIDs(t, s, "", 3, 0)
		if len(ids) != min(n, 3) || p.more {
			t.Errorf("of %d pets %v are listed, more: %v", n, ids, p.more)
		}
		mustCreate(t, other, rex)
	}
	_, first := pageIDs(t, s, "", 3, 0)
	mustCreate(t, other, rex)
	if _, again := pageIDs(t, s, "", 3, 0); again != first || !first.more {
		t.Errorf("a page with more behind it is read again")
	}
}

// TestStatementsNameTheirColumns, so that they run beside a newer schema.
func TestStatementsNameTheirColumns(t *testing.T) {
	blind := regexp.MustCompile(`INSERT (OR REPLACE )?INTO \w+ (VALUES|SELECT)|SELECT \*`)
	files := []string{"store.go", "auth.go", "limits.go", "rqlite.go", "sqlite.go", "backup.go"}
	for _, literal := range literalsOf(t, files...) {
		if blind.MatchString(literal) {
			t.Errorf("this statement names no columns: %s", literal)
		}
	}
}
