package main

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

// editAsCommand changes what is stored as a command does, which the other stores have to notice.
func editAsCommand(t testing.TB, db string, statements ...string) {
	t.Helper()
	s := openDatabase(t, db)
	for _, st := range statements {
		must(t, errorOf(s.edit(context.Background(), sqlOf(st))))
	}
	must(t, s.Close())
}

// TestAReadThatFailsAfterARowIsAnError: half of a page or of an export must not pass for all of it.
func TestAReadThatFailsAfterARowIsAnError(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		query := sqlOf(`SELECT value -> '$' FROM json_each('["1", "no JSON"]')`)
		err := openDatabase(t, db).engine.read(t.Context(), query, func(scan scanner) error {
			return scan(new(string))
		})
		if err == nil || !strings.Contains(err.Error(), "malformed JSON") {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestProbesLeaveOneRow, however many there are.
func TestProbesLeaveOneRow(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		must(t, s.probe(t.Context()))
		must(t, s.probe(t.Context()))
		rows := readNumber(t, s, "SELECT count(*) FROM services")
		if n := commitsOf(s); n != 2 || rows != 1 {
			t.Errorf("two probes are %d transactions and leave %d rows", n, rows)
		}
	})
}

// TestEveryStatementRunsOnEveryEngine sends every statement of the source. Its arguments are
// integers, strings, and NULL; its columns are read to integers, booleans, and strings.
func TestEveryStatementRunsOnEveryEngine(t *testing.T) {
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		var sent strings.Builder
		s.engine = &watchedEngine{engine: s.engine, check: func(st statement, columns []any) {
			sent.WriteString(st.query + "\n")
			for _, arg := range st.args {
				switch arg.(type) {
				case int64, string, nil:
				default:
					t.Errorf("an argument is a %T: %s", arg, st.query)
				}
			}
			for _, column := range columns {
				switch reflect.TypeOf(column).Elem().Kind() {
				case reflect.Int, reflect.Int64, reflect.Bool, reflect.String:
				default:
					t.Errorf("a column is read to a %T: %s", column, st.query)
				}
			}
		}}
		sendPetStatements(t, s)
		sendKeyStatements(t, s)
		literals := literalsOf(t, "store.go", "keys.go", "usage.go", "commands_pets.go")
		if len(literals) < 15 {
			t.Errorf("the source has %d statements", len(literals))
		}
		for _, literal := range literals {
			if !strings.Contains(sent.String(), literal) {
				t.Errorf("this statement of the source was not sent:\n%s", literal)
			}
		}
	})
}

func sendPetStatements(t *testing.T, s *store) {
	ctx := t.Context()
	mustCreate(t, s, rex)
	pageIDs(t, s, "", 20, 0)
	pageIDs(t, s, Sold, 20, 0)
	_, err := s.pet(1)
	must(t, err)
	createOnce(t, s, 1, "Rex", testTime)
	must(t, s.purge(ctx, testTime))
	must(t, newLedger(s, 0).purge(ctx, testTime))
	must(t, s.probe(ctx))
	must(t, s.readable(ctx))
	must(t, s.importPets(ctx, "digest", []string{rowOf(rex)}, 0, 1))
	_, err = s.imported(ctx, "digest")
	must(t, err)
	set, err := parseCommand("pet set", []string{"-name=Tom", "-category=2", "-status=sold", "1"})
	must(t, err)
	must(t, errorOf(s.edit(ctx, set.petChange())))
	quiet := &process{stdout: io.Discard, stderr: io.Discard}
	cmd := commandNamed("pet delete").newInvocation(quiet)
	cmd.store, cmd.log, cmd.id = s, testLog, 1
	_, err = cmd.exportPets(ctx, "-")
	must(t, err)
	must(t, petDelete(ctx, cmd))
	_, err = schemaVersion(ctx, s.engine)
	must(t, err)
	must(t, errorOf(s.write(ctx, upgrade(len(migrations), 1)[1:]...))) // [0] is empty
}

func sendKeyStatements(t *testing.T, s *store) {
	ctx, now := t.Context(), instantOf(testTime)
	token := mustInsertKey(t, s, apiKey{Name: "second", Plan: "enterprise"})
	ring := newKeyring(s, false)
	key := mustAuthenticate(t, ring, token, testTime)

	successor, next := *key, newSecret(false)
	_, err := rotateKey(ctx, s, &successor, next.digest(), now+1000)
	must(t, err)
	must(t, takeBack(ctx, s, next.digest(), restoreExpiry(key, now+1000)))
	change := writing(s,
		setPlan(key.ID, "enterprise", quota{6, 8}),
		setName(key.ID, "third"),
		setLifetime(key.ID, now, dayMillis))
	must(t, change())

	limits := newLedger(s, time.Minute)
	limits.noteDeprecatedUse(key.ID, now)
	_, err = limits.admit(&key.account, testTime)
	must(t, err)
	must(t, limits.flush(ctx, func() time.Time { return testTime }))
	ban := decision{now: now}
	limits.storeBan(&key.account, &ban)
	must(t, ban.banErr)
	must(t, unbanKey(ctx, s, key.ID, now))
	must(t, revokeNow(ctx, s, key.ID, now))

	_, err = readKeys(ctx, s, now, "")
	must(t, err)
	must(t, eachUsage(ctx, s, 0, key.usageID, -1, func(*lineUsage) error { return nil }))
	_, err = readReport(ctx, s, now)
	must(t, err)
}
