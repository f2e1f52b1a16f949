package main

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestAnIdempotencyKeyMakesOnePet, also when repeats reach two programs in turn.
func TestAnIdempotencyKeyMakesOnePet(t *testing.T) {
	const day = 24 * time.Hour
	type step struct {
		keyID   int64
		body    string
		after   time.Duration
		verdict string
		id      int64
	}
	engines(t, func(t *testing.T, db string) {
		for what, steps := range map[string][]step{
			"another body is refused, and another API key is independent": {
				{1, "Rex", 0, "created", 1},
				{1, "Max", 0, "reused", 1},
				{2, "Rex", 0, "created", 2},
				{2, "Max", 0, "reused", 2},
				{1, "Rex", 0, "replayed", 1},
			},
			"after 24 hours another body may use it": {
				{1, "Rex", 0, "created", 1},
				{1, "Max", day, "created", 2},
				{1, "Rex", day, "reused", 2},
			},
			"a repeat does not lengthen the 24 hours, and they begin anew with the second pet": {
				{1, "Rex", 0, "created", 1},
				{1, "Rex", day - time.Millisecond, "replayed", 1},
				{1, "Rex", day, "created", 2},
				{1, "Rex", 2*day - time.Millisecond, "replayed", 2},
			},
		} {
			stores := []*store{openDatabase(t, db), openDatabase(t, db)}
			editAsCommand(t, db,
				"DELETE FROM pets", "DELETE FROM idempotency", "DELETE FROM sqlite_sequence")
			made := int64(0)
			for i, step := range steps {
				s, now := stores[i%2], testTime.Add(step.after)
				id, verdict := createOnce(t, s, step.keyID, step.body, now)
				if verdict != step.verdict || id != step.id {
					t.Errorf("%s: step %d is %s %d, want %+v", what, i, verdict, id, step)
				}
				if verdict == "created" {
					made++
				}
			}
			wantPets(t, stores[0], made)
		}
	})
}

// TestRepeatsInOneTransactionMakeOnePet: SQL decides who is first, also between the statements of
// one transaction.
func TestRepeatsInOneTransactionMakeOnePet(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		verdicts := make([]string, 4)
		once := func(i int, body string) func() error {
			return func() error {
				id, replayed, reused, err := s.createPetOnce(
					NewPet{Name: body, CategoryID: 1, Status: Sold}, 1, "k", []byte(body), testTime)
				verdicts[i] = fmt.Sprint(id, " ", replayed, " ", reused)
				return err
			}
		}
		errs := writeTogether(t, s,
			creating(s, "Kim"), once(0, "Rex"), once(1, "Rex"), once(2, "Max"), once(3, "Rex"))
		for _, err := range errs {
			must(t, err)
		}
		want := []string{"2 false false", "2 true false", "2 true true", "2 true false"}
		if !slices.Equal(verdicts, want) || countPets(t, s) != 2 {
			t.Errorf("id, replayed, and reused are %q, want %q", verdicts, want)
		}
	})
}

func TestPurgeRemovesWhatHasServedItsTimeOnly(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		today := int64(instantOf(testTime) / dayMillis)
		record := func(key int64, age time.Duration) statement {
			return sqlOf("INSERT INTO idempotency VALUES (1, ?, x'00', 1, ?)",
				fmt.Sprint(key), int64(instantOf(testTime.Add(-age))))
		}
		day := func(usageID, day int64) statement {
			return sqlOf("INSERT INTO usage_days VALUES (?, ?, 1, 0, 0)", usageID, day)
		}
		var rows []statement
		for i := range int64(1200) { // more than one chunk
			rows = append(rows,
				record(i, 24*time.Hour+time.Duration(i)*time.Second), day(i, today-400-i%3))
		}
		rows = append(rows,
			record(-1, 24*time.Hour-time.Millisecond), record(-2, 0), record(-3, -time.Hour),
			day(7, today-399), day(7, today))
		must(t, writing(s, rows...)())
		mustCreate(t, s, rex)
		must(t, s.purge(t.Context(), testTime))
		must(t, newLedger(s, 0).purge(t.Context(), testTime))
		records := readNumber(t, s, "SELECT count(*) FROM idempotency")
		days := readNumber(t, s, "SELECT count(*) FROM usage_days")
		if records != 3 || days != 2 || countPets(t, s) != 1 {
			t.Errorf("%d young records, %d young days and %d pets are left, want 3, 2 and 1",
				records, days, countPets(t, s))
		}
	})
}
