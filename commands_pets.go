package main

// What the commands about pets do: changes of single ones, import, and export. An import adds its
// pets in many transactions, and goes on where it was stopped.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
)

// petSet changes what the flags say, and leaves the rest.
func petSet(ctx context.Context, cmd *invocation) error {
	results, err := cmd.store.edit(ctx, cmd.petChange())
	if err != nil {
		return err
	}
	if results[0].affected == 0 {
		return cmd.unknownID()
	}
	cmd.log.Info("pet changed", cmd.changes()...)
	return nil
}

// petChange changes the columns of a pet for which a flag is given.
func (c *invocation) petChange() statement {
	var category any // nil is NULL, and changes nothing: any number can be a category
	if c.given("category") {
		category = c.pet.CategoryID
	}
	return sqlOf(`UPDATE pets SET
		name = ifnull(nullif(?2 ->> '$', ''), name),
		category_id = ifnull(?3, category_id),
		status = ifnull(nullif(?4, 0), status)
		WHERE id = ?1`,
		c.id, quote(c.newName), category, c.pet.Status.stored())
}

// petShow prints a pet.
func petShow(_ context.Context, cmd *invocation) error {
	pet, err := cmd.store.pet(cmd.id)
	if err != nil {
		return err
	}
	if pet == nil {
		return cmd.unknownID()
	}
	return cmd.say(string(pet.body) + "\n")
}

// petDelete deletes all pets that are named, or none.
func petDelete(ctx context.Context, cmd *invocation) error {
	ids, err := cmd.idsToDelete(ctx)
	if err != nil {
		return err
	}
	deleted, err := cmd.store.deletePets(ctx, ids)
	if err != nil {
		return err
	}
	cmd.log.Info("pets deleted", "pets", deleted, "ids", cmd.argument)
	return nil
}

// idsToDelete are the ids that the arguments name, or stdin.
func (c *invocation) idsToDelete(ctx context.Context) ([]string, error) {
	if c.argument != "-" {
		return c.arguments, nil
	}
	var ids []string
	err := untilStopped(ctx, func() error {
		lines := bufio.NewScanner(c.stdin)
		for lines.Scan() {
			if id := strings.TrimSpace(lines.Text()); id != "" {
				ids = append(ids, id)
			}
		}
		return lines.Err()
	})
	if err != nil {
		return nil, err // after a stop, the lines above may still be adding ids
	}
	if len(ids) == 0 {
		return nil, errors.New("stdin names no pet")
	}
	return ids, nil
}

// deletePets deletes the pets with these ids, and returns how many there were. If one of them is
// unknown, none is deleted, and the error names the first 20 that are.
func (s *store) deletePets(ctx context.Context, ids []string) (deleted int64, err error) {
	rows := []byte("[")
	known := map[string]bool{}
	for _, text := range ids {
		if known[text] {
			continue
		}
		known[text] = true
		id, ok := parseID(text)
		if !ok {
			id = 0 // no pet has it
		}
		rows = fmt.Appendf(rows, `[%d,`, id) // each row is [id, text]
		rows = append(appendQuoted(rows, text), "],"...)
	}
	rows[len(rows)-1] = ']' // in place of the last comma
	// look is for the error alone. remove has the same condition, since no Go code can run between
	// the statements of a transaction.
	var count int64
	var names string
	look := statement{
		query: `WITH unknown AS (SELECT key, value ->> 1 AS name FROM json_each(?)
		WHERE value ->> 0 NOT IN (SELECT id FROM pets))
	SELECT (SELECT count(*) FROM unknown), (SELECT ifnull(group_concat(name, ', '), '')
		FROM (SELECT name FROM unknown ORDER BY key LIMIT 20))`,
		args: []any{string(rows)},
		into: []any{&count, &names},
	}
	remove := sqlOf(`DELETE FROM pets WHERE id IN (SELECT value ->> 0 FROM json_each(?1))
	AND NOT EXISTS (SELECT 1 FROM json_each(?1) WHERE value ->> 0 NOT IN (SELECT id FROM pets))`,
		string(rows))
	results, err := s.edit(ctx, look, remove)
	switch {
	case err != nil:
		return 0, err
	case count == 1:
		return 0, fmt.Errorf("no pet has the id %s", names)
	case count > 20:
		return 0, fmt.Errorf("no pets have the ids %s, and %d more", names, count-20)
	case count > 0:
		return 0, fmt.Errorf("no pets have the ids %s", names)
	}
	return results[1].affected, nil
}

// importFile is the content of an import. Its pets wait as rows in a temporary file.
type importFile struct {
	rows   *os.File
	digest string // SHA-256 of the content in hex, by which the import is known
	pets   int64
	wrong  []string    // the first lines that are wrong, and why
	first  string      // of the content: its first bytes
	ids    importedIDs // that this call has given
}

// importedIDs are the ids that an import has given, as runs of consecutive ones. Those between two
// runs were given to others.
type importedIDs struct {
	runs      []idRun
	isUnknown bool // another try than this one has stored some of the pets
}

type idRun struct{ first, last int64 }

// add takes the result of the statement that has inserted pets, all under consecutive ids.
func (ids *importedIDs) add(inserted result) {
	if inserted.affected == 0 {
		ids.isUnknown = true
		return
	}
	run := idRun{first: inserted.lastID - inserted.affected + 1, last: inserted.lastID}
	n := len(ids.runs)
	if n > 0 && ids.runs[n-1].last == run.first-1 {
		ids.runs[n-1].last = run.last
		return
	}
	ids.runs = append(ids.runs, run)
}

func (ids *importedIDs) String() string {
	if ids.isUnknown || len(ids.runs) == 0 {
		return "unknown"
	}
	var runs []string
	for _, run := range ids.runs {
		runs = append(runs, fmt.Sprintf("%d to %d", run.first, run.last))
	}
	return strings.Join(runs, ", ")
}

// petImport adds the pets of a file. It stores nothing before all lines are known to be right.
func petImport(ctx context.Context, cmd *invocation) error {
	rows, err := os.CreateTemp("", "petstore-")
	if err != nil {
		return err
	}
	defer removeOpen(rows, os.Remove)() // it is removed now, and closed at the end
	file := &importFile{rows: rows}
	if err := cmd.checkImport(ctx, file); err != nil {
		return err
	}
	start, err := cmd.importStart(ctx, file)
	if err != nil {
		return err
	}
	stored, err := cmd.storePets(ctx, file, start)
	if err != nil {
		return fmt.Errorf("%d of %d pets are stored, this time with the ids %s; "+
			"the same import goes on after them: %w", stored, file.pets, &file.ids, err)
	}
	cmd.log.Info("pets imported",
		"pets", file.pets-start,
		"ids", file.ids.String(),
		"file", cmd.argument,
		"sha256", file.digest,
		"alreadyStored", start)
	return nil
}

// checkImport reads the content, and shows the first lines that are wrong.
func (c *invocation) checkImport(ctx context.Context, file *importFile) error {
	p := startProgress(c.stderr, "checking", "", 0)
	err := untilStopped(ctx, func() error {
		if c.argument == "-" {
			return file.read(c.stdin)
		}
		content, err := os.Open(c.argument) // of a FIFO, it waits for a writer
		if err != nil {
			return err
		}
		defer content.Close()
		return file.read(content)
	})
	p.end()
	if ctx.Err() == nil { // After a stop, file.read may still be adding lines.
		_, _ = io.WriteString(c.stderr, strings.Join(file.wrong, ""))
	}
	if err != nil {
		return err
	}
	if len(file.wrong) > 0 {
		return fmt.Errorf("%s has wrong lines; nothing was stored%s", c.argument, file.hint())
	}
	return nil
}

// hint says how lines of JSON are made of a content in another form that people often have.
func (f *importFile) hint() string {
	switch {
	case strings.HasPrefix(f.first, "["):
		return "; jq -c '.[]' makes lines of a JSON array"
	case !strings.HasPrefix(f.first, "{") && strings.Contains(f.first, ","):
		return `; jq -Rc 'split(",") | {name: .[0], categoryId: .[1] | tonumber}' ` +
			"makes lines of the columns name,categoryId, without their heading"
	}
	return ""
}

// read reads a pet from each line, up to the 20th line that is wrong. A line is read as strictly as
// the body of createPet, but for an id, which does not count.
func (f *importFile) read(content io.Reader) error {
	digest, rows := sha256.New(), bufio.NewWriter(f.rows)
	in := bufio.NewReader(io.TeeReader(content, digest))
	if mark, _ := in.Peek(3); string(mark) == "\ufeff" { // a byte order mark
		_, _ = in.Discard(3)
	}
	start, _ := in.Peek(100)
	f.first = strings.TrimSpace(string(start))
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxBody+len("\r\n"))
	number := 0
	for len(f.wrong) < 20 && lines.Scan() {
		number++
		line := lines.Bytes()
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		pet, err := decodeNewPet(line, "id")
		if err != nil {
			// The text of an Error begins with its code, which is the same for all lines.
			_, problem, _ := strings.Cut(err.Error(), ": ")
			f.wrong = append(f.wrong, fmt.Sprintf("line %d: %s\n", number, problem))
			continue
		}
		f.pets++
		_, _ = rows.Write(append(pet.appendRow(nil), '\n')) // Flush returns the error
	}
	if lines.Err() != nil {
		return fmt.Errorf("line %d: it has more than 64 KiB, or cannot be read: %w",
			number+1, lines.Err())
	}
	f.digest = fmt.Sprintf("%x", digest.Sum(nil))
	return rows.Flush()
}

// importStart returns how many pets of an import are stored already. With -again an import that has
// ended begins anew.
func (c *invocation) importStart(ctx context.Context, file *importFile) (int64, error) {
	stored, err := c.store.imported(ctx, file.digest)
	hasEnded := stored >= file.pets && file.pets > 0 // without pets, it is never refused
	if err != nil || !hasEnded {
		return stored, err
	}
	if !c.again {
		return 0, fmt.Errorf("it was imported before, all %d pets; -again adds them once more",
			file.pets)
	}
	// This moves the number of stored pets back to 0, and stores none. It is a write of its own:
	// each later write moves the number up, and can tell by it whether it was made before. If the
	// first batch moved it instead, then of an import of 5 pets from 5 to 5, that could not.
	_, err = c.store.importPets(ctx, file.digest, nil, file.pets, 0)
	return 0, err
}

// importBatch is how many pets of an import share a transaction. More would be faster, but creates
// wait meanwhile.
const importBatch = 500

// storePets stores those pets of an import that are not stored yet, and returns how many then are.
// After each transaction it pauses for as long as that took, so that others can write for half of
// the time.
func (c *invocation) storePets(ctx context.Context, file *importFile, stored int64) (int64, error) {
	p := startProgress(c.stderr, "importing", "pets", file.pets-stored)
	defer p.end()
	// The file's own offset stands at its end, after what was written.
	rows := bufio.NewScanner(io.NewSectionReader(file.rows, 0, math.MaxInt64))
	for range stored {
		rows.Scan()
	}
	for stored < file.pets {
		if ctx.Err() != nil {
			return stored, context.Cause(ctx)
		}
		var batch []string
		for len(batch) < importBatch && rows.Scan() {
			batch = append(batch, rows.Text())
		}
		if rows.Err() != nil {
			return stored, rows.Err()
		}
		begin := time.Now()
		next := stored + int64(len(batch))
		inserted, err := c.store.importPets(ctx, file.digest, batch, stored, next)
		if err != nil {
			return stored, err
		}
		file.ids.add(inserted)
		p.done.Add(next - stored)
		stored = next
		pause(ctx, time.Since(begin))
	}
	return stored, nil
}

const importedQuery = "SELECT value FROM counters WHERE name = ?"

// imported returns how many pets of an import are stored. The digest of its content names it.
func (s *store) imported(ctx context.Context, digest string) (stored int64, err error) {
	_, err = s.readInto(ctx, sqlOf(importedQuery, "import "+digest), &stored)
	return stored, err
}

// insertImported adds pets if the statement before has changed a row.
var insertImported = insertPets("changes() = 1")

// importPets stores the next pets of an import, and moves the number of its stored pets from one
// value to another, in one transaction. It may be repeated: if the number is "to" already, an
// earlier try or the same import elsewhere has stored these pets, and it stores none. If the number
// is neither of the two, it fails and stores nothing.
func (s *store) importPets(ctx context.Context, digest string, rows []string,
	from, to int64) (inserted result, err error) {
	name := "import " + digest
	move := sqlOf(`REPLACE INTO counters (name, value) SELECT ?1, ?2
		WHERE ifnull((SELECT value FROM counters WHERE name = ?1), 0) = ?3`, name, to, from)
	insert := sqlOf(insertImported, "["+strings.Join(rows, ",")+"]")
	var stored int64
	read := statement{query: importedQuery, args: []any{name}, into: []any{&stored}}
	var results []result
	for range 5 {
		results, err = s.write(ctx, move, insert, read)
		// A write whose outcome is unknown may be repeated, since the move is made only once. After
		// a stop a repeat would not be sent, and its error would not say that.
		if !errors.Is(err, errOutcome) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return result{}, err
	}
	if stored != to {
		return result{}, errors.New("another import of the same content is under way")
	}
	return results[1], nil
}

// petExport writes to a new file, or to stdout.
func petExport(ctx context.Context, cmd *invocation) error {
	file := cmp.Or(cmd.argument, "-")
	pets, err := cmd.exportPets(ctx, file)
	if err != nil {
		return fmt.Errorf("cannot export the pets of %s: %w", databaseName(cmd.db), err)
	}
	cmd.log.Info("pets exported",
		"pets", pets,
		"file", file)
	return nil
}

// exportPets returns how many pets it has written.
func (c *invocation) exportPets(ctx context.Context, file string) (pets int64, err error) {
	// Without -status the number is 0, which selects all pets.
	count := sqlOf("SELECT count(*) FROM pets WHERE ? IN (0, status)",
		c.pet.Status.stored())
	if _, err := c.store.readInto(ctx, count, &pets); err != nil {
		return 0, err
	}
	p := startProgress(c.stderr, "exporting", "pets", pets)
	defer p.end()
	if file == "-" {
		err = c.writePets(ctx, c.stdout, p)
		return p.done.Load(), err
	}
	partial, err := createFile(file)
	if err != nil {
		return 0, err
	}
	defer partial.discard()
	if err := c.writePets(ctx, partial, p); err != nil {
		return 0, err
	}
	return p.done.Load(), partial.publish()
}

// writePets writes pets as JSON, one a line.
func (c *invocation) writePets(ctx context.Context, to io.Writer, p *progress) error {
	out := bufio.NewWriterSize(to, maxBody)
	var line []byte
	err := c.store.eachPet(ctx, c.pet.Status, func(pet *Pet) error {
		p.done.Add(1)
		line = append(pet.appendJSON(line[:0]), '\n')
		_, err := out.Write(line)
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

// eachPet calls do with each pet that has the status, by id. Status "" selects all. The first row
// of each response is no pet, but the number of edits (petsQuery). It counts towards eachRow's
// limit. For it, 0 is returned: eachRow never goes on from that, because a full response ends with
// a pet.
func (s *store) eachPet(ctx context.Context, status PetStatus, do func(pet *Pet) error) error {
	pets := s.newPetReader()
	return s.eachRow(ctx, listOf(status.stored()), func(scan scanner) (id int64, err error) {
		pet, err := pets.read(scan)
		if err != nil || pet == nil {
			return 0, err
		}
		return pet.ID, do(pet)
	})
}
