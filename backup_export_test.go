package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestExportFiltersByStatus(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		for _, status := range []PetStatus{Sold, Available, Pending, Sold} {
			mustCreate(t, s, NewPet{Name: "Rex", CategoryID: 1, Status: status})
		}
		out, log, err := petstore(t, nil, "pet", "export", "-db", db, "-status", "sold", "-")
		must(t, err)
		want := `{"id":1,"name":"Rex","categoryId":1,"status":"sold"}` + "\n" +
			`{"id":4,"name":"Rex","categoryId":1,"status":"sold"}` + "\n"
		if out != want || !strings.Contains(log, `"msg":"pets exported","pets":2`) {
			t.Errorf("exported is %q, and the log says %s", out, log)
		}
	})
}

// TestAnExportIsWhole on a cluster too, which needs three responses of at most 10,000 pets. The
// export can be imported.
func TestAnExportIsWhole(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		_, err := s.write(t.Context(), sqlOf(`WITH RECURSIVE n (value) AS
				(SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 20001)
			INSERT INTO pets (category_id, status, name)
				SELECT -value, 2 + value % 3, 'pet ' || value FROM n`))
		must(t, err)
		file := filepath.Join(t.TempDir(), "all.jsonl")
		_, log, err := petstore(t, nil, "pet", "export", "-db", db, file)
		must(t, err)
		if !strings.Contains(log, `"msg":"pets exported","pets":20001`) {
			t.Errorf("it says %s", log)
		}
		content := readText(t, file)
		if exportedPets(t, db) != content {
			t.Error("stdout gets another text than a file")
		}
		other := madeDatabase(t)
		_, err = importContent(t, other, content)
		must(t, err)
		if exportedPets(t, other) != content {
			t.Error("what was imported is not what was exported")
		}
	})
}

// TestAnExportOfAFileIsOneMoment: it lacks what is added meanwhile, and has what is deleted.
func TestAnExportOfAFileIsOneMoment(t *testing.T) {
	s := newStore(t)
	for range 3 {
		mustCreate(t, s, rex)
	}
	var pets []string
	must(t, s.eachPet(t.Context(), "", func(pet *Pet) error {
		pets = append(pets, string(pet.appendJSON(nil)))
		if len(pets) > 1 {
			return nil
		}
		mustCreate(t, s, rex)
		return errorOf(s.edit(t.Context(), sqlOf("DELETE FROM pets WHERE id = 2")))
	}))
	if len(pets) != 3 || !strings.HasPrefix(pets[1], `{"id":2,`) {
		t.Errorf("exported is %q", pets)
	}
}

// TestAnExportThatFailsLeavesNoHalfFile, nor does it lose the one that was there.
func TestAnExportThatFailsLeavesNoHalfFile(t *testing.T) {
	db := madeDatabase(t)
	mustCreate(t, openDatabase(t, db), rex)
	folder := t.TempDir()
	file := filepath.Join(folder, "pets.jsonl")

	ctx, cancel := context.WithCancel(t.Context())
	c, err := parseCommand("pet export", []string{file})
	must(t, err)
	c.stderr = io.Discard
	c.store = storeOn(&watchedEngine{openDatabase(t, db).engine, func(st statement, _ []any) {
		if strings.HasPrefix(st.query, "SELECT -value") {
			cancel()
		}
	}})
	if err := petExport(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped, it ends with %v", err)
	}
	wantNames(t, folder)

	must(t, os.WriteFile(file, []byte("before"), 0o600))
	before := filesIn(t, folder)
	_, _, err = petstore(t, nil, "pet", "export", "-db", db, file)
	wantOneLine(t, err, false, "cannot export the pets of "+db, file+" exists")
	wantSameFiles(t, before, filesIn(t, folder))

	args := []string{"pet", "export", "-db", db}
	err = run(t.Context(), args, nil, nil, fullDisk{}, io.Discard)
	wantOneLine(t, err, false, "cannot export the pets of "+db, syscall.ENOSPC.Error())
}
