package main

// The schema of all tables: its migrations, the marks by which a database is known as this
// program's, its identity, and how it is brought up to date.

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// openMode is how a database is opened.
type openMode int

const (
	openExisting openMode = iota // it has to be there, and of the present schema
	openToRead                   // as openExisting; nothing of it is changed
	openToCopy                   // as openToRead; an older schema will do
	openOrMake                   // as openExisting, but it is made if there is none
	openToServe                  // as openOrMake, brought up to date; no other service may be on it
	openNothing                  // the command itself opens it
)

// onlyReads reports whether a database is left as it is.
func (m openMode) onlyReads() bool { return m == openToRead || m == openToCopy }

// applicationID marks a database as this program's ("pets" in ASCII).
const applicationID = 0x70657473

//go:embed schema
var schemaFiles embed.FS

// migrations take the schema from one version to the next: schema/1.sql makes version 1. A change
// of the schema is a new file that only adds to it, since databases have run the others, and older
// services may run beside newer ones.
var migrations = readMigrations()

func readMigrations() (migrations []string) {
	for {
		// The program contains the files: after the last one, the next is missing.
		text, err := schemaFiles.ReadFile(fmt.Sprintf("schema/%d.sql", len(migrations)+1))
		if err != nil {
			return migrations
		}
		migrations = append(migrations, string(text))
	}
}

var (
	errForeign = errors.New("it belongs to another program")
	errMissing = errors.New("there is none; look whether -db, or PETSTORE_DB, names the right " +
		"one: petstore makes it at its first start")
	errOlder = errors.New("only the start of a service brings it up to date: start the service " +
		"first, or to look into a copy, restore it: petstore restore -db look.db COPY")
	errServed = errors.New("a petstore serves it, or a restore runs; stop it first")
)

// ownerQuery reads the id of the application, the version of the schema, and the number of tables
// and indexes.
const ownerQuery = `SELECT (SELECT application_id FROM pragma_application_id),
	(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`

// checkMarks takes a row of ownerQuery and returns the version of the schema, 0 for none. It
// refuses a database of another program, one whose version somebody has changed, since it may hold
// pets, and one of a newer schema. For the last it returns the version as well as an error, because
// a restore may replace such a database.
func checkMarks(scan scanner) (version int, err error) {
	var application, tables int
	if err := scan(&application, &version, &tables); err != nil {
		return 0, err
	}
	unmarked := application == 0 && tables == 0 && version == 0
	if application != applicationID && !unmarked {
		return 0, errForeign
	}
	if version < 1 && !unmarked {
		return 0, fmt.Errorf("its schema is version %d, which no petstore writes: set it back to "+
			"what it was, by PRAGMA user_version = %d if this petstore has used it", version,
			len(migrations))
	}
	if version > len(migrations) {
		return version, fmt.Errorf(
			"its schema is version %d and this petstore knows only %d; use a newer petstore",
			version, len(migrations))
	}
	return version, nil
}

// schemaVersion reads the version of an engine's schema, as checkMarks does.
func schemaVersion(ctx context.Context, e engine) (version int, err error) {
	err = e.read(ctx, sqlOf(ownerQuery), func(scan scanner) (err error) {
		version, err = checkMarks(scan)
		return err
	})
	return version, err
}

// prepareSchema makes the schema as mode wants it. Only a service brings an older one up to date:
// otherwise a look at a copy, or at the database of an older service that runs, would make it one
// that this older program refuses.
// isMade reports whether there was none.
func prepareSchema(ctx context.Context, e engine, mode openMode) (isMade bool, err error) {
	version, err := schemaVersion(ctx, e)
	if err != nil || version == len(migrations) {
		return false, err
	}
	isEmpty := version == 0
	switch {
	case mode == openToServe, mode == openOrMake && isEmpty:
		return isEmpty, updateSchema(ctx, e, version)
	case isEmpty:
		return false, errMissing
	case mode == openToCopy:
		return false, nil
	}
	return false, fmt.Errorf("its schema is version %d, and this petstore's is %d; %w",
		version, len(migrations), errOlder)
}

// updateSchema runs the migrations after a version, in one transaction.
func updateSchema(ctx context.Context, e engine, version int) error {
	_, writeErr := e.write(ctx, upgrade(version, newIdentity()))
	// The error of the write does not count if the schema is right now: another program may have
	// made the same migrations in the meantime.
	version, err := schemaVersion(ctx, e)
	if err == nil && version == len(migrations) {
		return nil
	}
	// The error of the write comes first, since it says why the schema is not right.
	return cmp.Or(writeErr, err)
}

// newIdentity draws the identity of a database.
func newIdentity() int64 {
	return rand.Int64N(math.MaxInt64) + 1
}

const identityQuery = "SELECT value FROM identity"

// identity reads the identity of the database: each restore gives it another one.
func (s *store) identity(ctx context.Context) (identity int64, err error) {
	_, err = s.readInto(ctx, sqlOf(identityQuery), &identity)
	return identity, err
}

// upgrade takes the schema from a version to the present one, and gives the database an identity
// unless it has one. The identity is an argument: if SQL drew it, each node of a cluster would draw
// another one.
func upgrade(version int, identity int64) []statement {
	return []statement{
		sqlOf(strings.Join(migrations[version:], "")),
		sqlOf(fmt.Sprintf("PRAGMA application_id = %d", applicationID)),
		sqlOf(fmt.Sprintf("PRAGMA user_version = %d", len(migrations))),
		sqlOf("INSERT OR IGNORE INTO identity (id, value) VALUES (1, ?)", identity),
	}
}
