package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
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
			named := NewPet{Name: text, CategoryID: 1, Status: Sold}
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
				t.Errorf("%s: the %s of a pet is %#v, want %#v", place, name, got, value)
				return
			}
		}
	}
}

// TestEveryFieldOfAPetGoesEverywhere: into every response, and through every command that copies.
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
		var created, got []string
		for i, pet := range oddPets(t) {
			pets = append(pets, bodyOf(t, pet))
			body, err := json.Marshal(pets[i])
			must(t, err)
			key := "Idempotency-Key:" // of every other one, and none of the rest
			if i%2 == 1 {
				key += fmt.Sprint(i)
			}
			response := s.post(key, "="+string(body)).is(201)
			created = append(created, response.body)
			got = append(got, s.get(response.header.Get("Location")).is(200).body)
		}
		array := func(pets []string) string { return "[" + strings.Join(pets, ",") + "]" }
		wantFields(t, "create", array(created), pets)
		wantFields(t, "get", array(got), pets)
		wantFields(t, "list", s.list().is(200).body, pets)
		wantFields(t, "page", s.get("/v1/pets?limit=100&after=1").is(200).body, pets[1:])
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
		mustRun(t, "backup", "-db", db, file)
		wantExported("backup", file)
		mustRun(t, "restore", "-db", restored, file)
		wantExported("restore", restored)

		for name, value := range pets[1] {
			flag := fmt.Sprintf("-%s=%v", strings.TrimSuffix(name, "Id"), value)
			if _, _, err := petstore(t, nil, "pet", "set", "-db", db, flag, "1"); err != nil {
				t.Errorf("pet set %s: %v", flag, err)
			}
		}
		pets[0] = pets[1]
		wantExported("pet set", db)
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
			if pet := readPet(t, s, id); pet != (Pet{ID: id, NewPet: rex}) {
				t.Errorf("pet %d is %+v", id, pet)
			}
		}
		ids, p := pageIDs(t, s, "", 2, first)
		if !slices.Equal(ids, []int64{first + 1, first + 2}) || p.last != first+2 || !p.more {
			t.Errorf("the page is %v, its last %d", ids, p.last)
		}
	})
}

// TestThreeServicesMigrateAtTheSameMoment: the first does it, and all of them run, on one identity.
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
