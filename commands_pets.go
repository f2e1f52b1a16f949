package main

// What the commands about pets do: changes of single ones, import, and export. An import adds its
// pets in many transactions, and goes on where it was stopped.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
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

// petDelete deletes all pets that are named, or none. First it writes them to stdout, from where
// pet import -keep-ids can bring them back. While stdout waits for its reader, no lock is held.
func petDelete(ctx context.Context, cmd *invocation) error {
	ids, err := cmd.idsToDelete(ctx)
	if err != nil {
		return err
	}
	found, err := cmd.store.findPets(ctx, ids)
	if err != nil {
		return err
	}
	err = cmd.say(string(found.lines))
	if err == nil {
		err = cmd.syncStdout(ctx)
	}
	if err != nil {
		// It is not wrapped, as in issue: main would say nothing if the reader of stdout has left.
		return errors.New("nothing was deleted, since stdout does not take the pets: " +
			err.Error())
	}
	deleted, err := cmd.store.deletePets(ctx, found)
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
		in := bufio.NewReader(c.stdin)
		skipByteOrderMark(in)
		lines := bufio.NewScanner(in)
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

// foundPets are pets that are to be deleted.
type foundPets struct {
	ids   []int64 // ascending, each once
	lines []byte  // as export writes them

	// How many edits there had been before the first was read, and in which database.
	edits, identity int64
}

// findQuery finds pets by a JSON array of ids.
const findQuery = selectPets + `WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id`

// findPets reads the pets with these ids. It is an error if one of them is unknown.
func (s *store) findPets(ctx context.Context, texts []string) (*foundPets, error) {
	found := &foundPets{}
	query := sqlOf("SELECT (" + editsQuery + "), (" + identityQuery + ")")
	if _, err := s.readInto(ctx, query, &found.edits, &found.identity); err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, text := range texts {
		id, ok := parseID(text)
		if ok && !missing[text] {
			found.ids = append(found.ids, id)
		}
		missing[text] = true
	}
	slices.Sort(found.ids)
	readPet := s.petReader()
	// A thousand at a time, since a cluster's response is kept in memory.
	for some := range slices.Chunk(found.ids, 1000) {
		array, _ := json.Marshal(some) // of numbers
		err := s.read(ctx, sqlOf(findQuery, string(array)), func(scan scanner) error {
			pet, err := readPet(scan)
			if err != nil {
				return err
			}
			found.lines = append(pet.appendJSON(found.lines), '\n')
			delete(missing, strconv.FormatInt(pet.ID, 10))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(missing) > 0 {
		names := slices.Sorted(maps.Keys(missing))
		return nil, fmt.Errorf("no pet has the id %s", firstOf(names))
	}
	return found, nil
}

// firstOf names the first 20, and says how many more there are.
func firstOf(names []string) string {
	text := strings.Join(names[:min(len(names), 20)], ", ")
	if more := len(names) - 20; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// deletePets deletes pets unless anything was edited since they were read, or another database was
// restored, and returns how many. All are there then, since only an edit deletes a pet. So one
// condition is left to be tested while the transaction keeps creates waiting.
func (s *store) deletePets(ctx context.Context, found *foundPets) (deleted int64, err error) {
	ids, _ := json.Marshal(found.ids) // of numbers
	results, err := s.edit(ctx, sqlOf(`DELETE FROM pets
		WHERE id IN (SELECT value FROM json_each(?))
		AND ((SELECT value FROM counters WHERE name = 'edits'), (`+identityQuery+`)) = (?, ?)`,
		string(ids), found.edits, found.identity))
	if err != nil {
		return 0, err
	}
	if results[0].affected == 0 {
		return 0, errors.New("nothing was deleted, since something was edited or restored after " +
			"the pets were read; run the command again")
	}
	return results[0].affected, nil
}

// importFile is the content of an import. Its pets wait as rows in a temporary file.
type importFile struct {
	rows   *os.File
	digest string // SHA-256 of the content in hex, by which the import is known
	pets   int64
	wrong  []string // the first lines that are wrong, and why
	first  string   // of the content: its first bytes
	ids    idRuns   // that this call has given

	identity int64 // of the database when the import began

	kept map[int64]bool // the ids of the rows, which begin with them; nil without -keep-ids
}

// idRuns are runs of consecutive ids. Those between two runs of an import were given to others.
type idRuns struct {
	runs      []idRun
	isUnknown bool // another try than this one has stored some of the pets
}

type idRun struct{ first, last int64 }

// add takes a run that comes after the others.
func (ids *idRuns) add(run idRun) {
	n := len(ids.runs)
	if n > 0 && ids.runs[n-1].last == run.first-1 {
		ids.runs[n-1].last = run.last
		return
	}
	ids.runs = append(ids.runs, run)
}

// addInserted takes the result of the statement that has inserted pets, all under consecutive ids.
func (ids *idRuns) addInserted(inserted result) {
	if inserted.affected == 0 {
		ids.isUnknown = true
		return
	}
	ids.add(idRun{first: inserted.lastID - inserted.affected + 1, last: inserted.lastID})
}

func (run idRun) String() string { return fmt.Sprintf("%d to %d", run.first, run.last) }

func (ids *idRuns) String() string {
	if ids.isUnknown || len(ids.runs) == 0 {
		return "unknown"
	}
	var runs []string
	for _, run := range ids.runs {
		runs = append(runs, run.String())
	}
	return firstOf(runs)
}

// petImport adds the pets of a file. It stores nothing before all lines are known to be right.
func petImport(ctx context.Context, cmd *invocation) error {
	rows, err := os.CreateTemp("", "petstore-")
	if err != nil {
		return err
	}
	defer removeOpen(rows, os.Remove)() // it is removed now, and closed at the end
	file := &importFile{rows: rows}
	if cmd.keepIDs {
		file.kept = map[int64]bool{}
	}
	if err := cmd.checkImport(ctx, file); err != nil {
		return err
	}
	file.identity, err = cmd.store.identity(ctx)
	if err != nil {
		return err
	}
	if cmd.keepIDs {
		return cmd.importKept(ctx, file)
	}
	start, err := cmd.importStart(ctx, file)
	if err != nil {
		return err
	}
	stored, err := cmd.storePets(ctx, file, start)
	isRestored, readErr := cmd.store.isRestored(ctx, file.identity)
	if isRestored {
		return errRestored
	}
	if err := cmp.Or(err, readErr); err != nil {
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

// isRestored reports whether the database is another one than it was: what an import has stored may
// have been in the old one.
func (s *store) isRestored(ctx context.Context, identity int64) (bool, error) {
	now, err := s.identity(ctx)
	return err == nil && now != identity, err
}

var errRestored = errors.New("a copy was restored during the import, and may lack some of its " +
	"pets; run the command again")

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
	if ctx.Err() != nil { // After a stop, file.read may still be adding lines.
		return context.Cause(ctx)
	}
	_, _ = io.WriteString(c.stderr, strings.Join(file.wrong, ""))
	if len(file.wrong) > 0 && err == nil {
		err = fmt.Errorf("%s has wrong lines", c.argument)
	}
	if err == nil || file.digest == "" { // without a digest, it could not be read to its end
		return err
	}
	// An earlier run, perhaps of a version that took the line, may have stored some.
	stored, readErr := c.store.imported(ctx, file.digest)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	what := "nothing was stored"
	if stored > 0 {
		what = fmt.Sprintf("%d of its pets are stored, by an earlier run, and no more", stored)
	}
	return fmt.Errorf("%w; %s%s", err, what, file.hint())
}

// hint says how lines of JSON are made of a content in another form that people often have.
func (f *importFile) hint() string {
	switch {
	case strings.HasPrefix(f.first, "\x1f\x8b"):
		return "; it is compressed: gzip -dc FILE | petstore pet import -"
	case strings.HasPrefix(f.first, "SQLite format 3"):
		return "; it is a database: petstore pet export -db FILE makes lines of its pets, and " +
			"petstore restore FILE takes it whole"
	case strings.HasPrefix(f.first, "\xff\xfe"), strings.Contains(f.first, "\x00"):
		return "; it is UTF-16, as > writes it in PowerShell: " +
			"iconv -f UTF-16 -t UTF-8 FILE | petstore pet import -"
	case strings.HasPrefix(f.first, "["):
		return "; jq -c '.[]' makes lines of a JSON array"
	case !strings.HasPrefix(f.first, "{") && strings.Contains(f.first, ","):
		return `; jq -Rc 'split(",") | {name: .[0], categoryId: .[1] | tonumber}' ` +
			"makes lines of the columns name,categoryId, without their heading"
	}
	return ""
}

// skipByteOrderMark skips the one with which Windows begins a text.
func skipByteOrderMark(in *bufio.Reader) {
	if mark, _ := in.Peek(3); string(mark) == "\ufeff" {
		_, _ = in.Discard(3)
	}
}

// read reads a pet from each line, up to the 20th line that is wrong.
func (f *importFile) read(content io.Reader) error {
	digest, rows := sha256.New(), bufio.NewWriter(f.rows)
	in := bufio.NewReader(io.TeeReader(content, digest))
	skipByteOrderMark(in)
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
		row, err := f.rowOf(line)
		if err != nil {
			// The text of an Error begins with its code, which is the same for all lines.
			_, problem, _ := strings.Cut(err.Error(), ": ")
			f.wrong = append(f.wrong, fmt.Sprintf("line %d: %s\n", number, problem))
			continue
		}
		f.pets++
		_, _ = rows.Write(append(row, '\n')) // Flush returns the error
	}
	// What follows a wrong line is read for the digest.
	if _, err := io.Copy(io.Discard, in); err == nil {
		f.digest = fmt.Sprintf("%x", digest.Sum(nil))
	}
	if lines.Err() != nil {
		return fmt.Errorf("line %d: it has more than 64 KiB, or cannot be read: %w",
			number+1, lines.Err())
	}
	return rows.Flush()
}

// rowOf is the row of a line, which is read as strictly as the body of createPet, but for an id.
// That counts only with -keep-ids.
func (f *importFile) rowOf(line []byte) ([]byte, error) {
	pet, err := decodeNewPet(line, "id")
	if err != nil {
		return nil, err
	}
	row := pet.row()
	if f.kept == nil {
		return row, nil
	}
	var fields struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(line, &fields) // decodeNewPet has found it to be an object
	id, ok := parseID(string(fields.ID))
	if !ok {
		return nil, newError(CodeInvalidBody, "id: must be that of a pet, as exports have it")
	}
	if f.kept[id] {
		return nil, newError(CodeInvalidBody, "id: an earlier line has it, too")
	}
	f.kept[id] = true
	return append(fmt.Appendf(nil, "[%d,", id), row[1:]...), nil
}

// importStart returns how many pets of an import are stored already. With -again an import that has
// ended begins anew.
func (c *invocation) importStart(ctx context.Context, file *importFile) (int64, error) {
	stored, err := c.store.imported(ctx, file.digest)
	hasEnded := stored >= file.pets && file.pets > 0 // without pets, it is never refused
	if err != nil || !hasEnded {
		return stored, err
	}
	if c.again {
		return 0, c.store.restartImport(ctx, file.digest, file.pets)
	}
	ids, err := c.store.importedIDs(ctx, file.digest, file.pets)
	if err != nil {
		return 0, err
	}
	var lines strings.Builder
	for _, run := range ids.runs {
		fmt.Fprintln(&lines, run)
	}
	if err := c.say(lines.String()); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("it was imported before, all %d pets, with the ids %s; "+
		"-again adds them once more", file.pets, ids)
}

// importBatch is how many pets of an import share a transaction. More would be faster, but creates
// wait meanwhile.
const importBatch = 500

// eachBatch calls do with the rows of an import after the first skipped ones, a batch at a time,
// until ctx ends. After each batch it pauses for as long as that took, so that others can write for
// half of the time.
func (c *invocation) eachBatch(ctx context.Context, doing string, file *importFile, skipped int64,
	do func(rows []string) error) error {
	p := startProgress(c.stderr, doing, "pets", file.pets-skipped)
	defer p.end()
	// The file's own offset stands at its end, after what was written.
	rows := bufio.NewScanner(io.NewSectionReader(file.rows, 0, math.MaxInt64))
	for range skipped {
		rows.Scan()
	}
	for {
		var batch []string
		for len(batch) < importBatch && rows.Scan() {
			batch = append(batch, rows.Text())
		}
		if rows.Err() != nil || len(batch) == 0 {
			return rows.Err()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begin := time.Now()
		if err := do(batch); err != nil {
			return err
		}
		p.done.Add(int64(len(batch)))
		pause(ctx, time.Since(begin))
	}
}

// storePets stores those pets of an import that are not stored yet, and returns how many then are.
func (c *invocation) storePets(ctx context.Context, file *importFile, stored int64) (int64, error) {
	err := c.eachBatch(ctx, "importing", file, stored, func(rows []string) error {
		next := stored + int64(len(rows))
		inserted, err := c.store.importPets(ctx, file.digest, rows, stored, next)
		if err != nil {
			return err
		}
		file.ids.addInserted(inserted)
		stored = next
		return nil
	})
	return stored, err
}

const importedQuery = "SELECT value FROM counters WHERE name = ?"

// imported returns how many pets of an import are stored. The digest of its content names it.
func (s *store) imported(ctx context.Context, digest string) (stored int64, err error) {
	_, err = s.readInto(ctx, sqlOf(importedQuery, "import "+digest), &stored)
	return stored, err
}

// insertImported adds pets if the statement before has changed a row.
var insertImported = insertPets("changes() = 1")

// importPets stores the next pets of an import, notes their ids, and moves the number of its stored
// pets from one value to another, in one transaction.
func (s *store) importPets(ctx context.Context, digest string, rows []string,
	from, to int64) (inserted result, err error) {
	insert := sqlOf(insertImported, jsonArray(rows))
	// A row of counters has the first id in its name, and the last as its value.
	note := sqlOf(`INSERT INTO counters (name, value)
		SELECT ? || (last_insert_rowid() - changes() + 1), last_insert_rowid()
		WHERE changes() > 0`, idsPrefix(digest))
	results, err := s.moveImport(ctx, digest, from, to, insert, note)
	if err != nil {
		return result{}, err
	}
	return results[1], nil
}

// restartImport moves the number of stored pets back to 0, and forgets their ids. It is a write of
// its own: each later write moves the number up, and can tell by it whether it was made before. If
// the first batch moved it instead, then of an import of 5 pets from 5 to 5, that could not.
func (s *store) restartImport(ctx context.Context, digest string, pets int64) error {
	const query = "DELETE FROM counters WHERE " + areIDs + " AND changes() = 1"
	prefix := idsPrefix(digest)
	forget := sqlOf(query, prefix)
	_, err := s.moveImport(ctx, digest, pets, 0, forget)
	return err
}

// areIDs is the condition of the rows of counters in which an import has noted ids. The digit after
// the prefix is above the prefix itself, and below a colon.
const areIDs = "name > ?1 AND name < ?1 || ':'"

func idsPrefix(digest string) string { return "ids " + digest + " " }

// importedIDs are the ids that an import of so many pets gave when it was last begun. They are
// unknown if an older version has stored some of the pets.
func (s *store) importedIDs(ctx context.Context, digest string, pets int64) (*idRuns, error) {
	ids := &idRuns{}
	query := sqlOf(`SELECT CAST(substr(name, length(?1) + 1) AS INTEGER), value
		FROM counters WHERE `+areIDs+" ORDER BY value", idsPrefix(digest))
	err := s.read(ctx, query, func(scan scanner) error {
		var run idRun
		if err := scan(&run.first, &run.last); err != nil {
			return err
		}
		pets -= run.last - run.first + 1
		ids.add(run)
		return nil
	})
	if pets != 0 {
		ids = &idRuns{isUnknown: true}
	}
	return ids, err
}

// moveImport moves the number of an import's stored pets from one value to another and then runs
// statements, in one transaction, and returns the results of all. It may be repeated: if the number
// is "to" already, an earlier try or the same import elsewhere has done this, and the move changes
// nothing. If the number is neither of the two, it fails and stores nothing.
func (s *store) moveImport(ctx context.Context, digest string, from, to int64,
	then ...statement) ([]result, error) {
	name := "import " + digest
	var stored int64
	move := sqlOf(`REPLACE INTO counters (name, value) SELECT ?1, ?2
		WHERE ifnull((SELECT value FROM counters WHERE name = ?1), 0) = ?3`, name, to, from)
	read := statement{query: importedQuery, args: []any{name}, into: []any{&stored}}
	statements := slices.Concat([]statement{move}, then, []statement{read})
	results, err := s.write(ctx, statements...)
	for range 4 {
		// After a stop it would not be sent again, and the error would not say what is unknown.
		mayRepeat := errors.Is(err, errOutcome) && ctx.Err() == nil
		if !mayRepeat {
			break
		}
		results, err = s.write(ctx, statements...)
	}
	if err == nil && stored != to {
		return nil, errors.New("another import of the same content is under way")
	}
	return results, err
}

func jsonArray(rows []string) string { return "[" + strings.Join(rows, ",") + "]" }

// importKept brings deleted pets back under their ids. A pet that is there exactly as its line says
// is passed over, so that the same file can be imported again after a stop.
func (c *invocation) importKept(ctx context.Context, file *importFile) error {
	err := c.eachBatch(ctx, "checking", file, 0, func(rows []string) error {
		return c.store.findWrongIDs(ctx, rows, file)
	})
	if err != nil {
		return err
	}
	if len(file.wrong) > 0 {
		_, _ = io.WriteString(c.stderr, strings.Join(file.wrong[:min(len(file.wrong), 20)], ""))
		return fmt.Errorf("%s has %d lines whose ids cannot be given; nothing was stored",
			c.argument, len(file.wrong))
	}
	var inPlace, stored int64
	err = c.eachBatch(ctx, "importing", file, 0, func(rows []string) error {
		results, err := c.store.edit(ctx, sqlOf(insertKept, jsonArray(rows)))
		if err != nil {
			return err
		}
		inPlace += int64(len(rows))
		stored += results[0].affected
		return nil
	})
	isRestored, readErr := c.store.isRestored(ctx, file.identity)
	if isRestored {
		return errRestored
	}
	if err := cmp.Or(err, readErr); err != nil {
		return fmt.Errorf("%d of %d pets are in their place; "+
			"the same import goes on after them: %w", inPlace, file.pets, err)
	}
	c.log.Info("pets imported under their ids",
		"pets", stored,
		"file", c.argument,
		"alreadyThere", file.pets-stored)
	return nil
}

// The rows of these statements are [id, category_id, status, name]. New ids start above the number
// in sqlite_sequence, so that an id up to it was given, or is skipped for good. insertKept fails if
// another pet than its row's has the id.
const (
	insertKept = `INSERT INTO pets (id, category_id, status, name)
	SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)
	WHERE NOT EXISTS (SELECT 1 FROM pets WHERE pets.id = value ->> 0 AND category_id = value ->> 1
		AND status = value ->> 2 AND name = value ->> 3)`

	wrongIDs = `SELECT value ->> 0, pets.id IS NOT NULL
	FROM json_each(?) AS line LEFT JOIN pets ON pets.id = value ->> 0
	WHERE iif(pets.id IS NULL,
		value ->> 0 > ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'pets'), 0),
		category_id <> value ->> 1 OR status <> value ->> 2 OR name <> value ->> 3)
	ORDER BY line.key`
)

// findWrongIDs adds to the wrong lines those whose ids are taken, or were never given.
func (s *store) findWrongIDs(ctx context.Context, rows []string, file *importFile) error {
	return s.read(ctx, sqlOf(wrongIDs, jsonArray(rows)), func(scan scanner) error {
		var id int64
		var isTaken bool
		if err := scan(&id, &isTaken); err != nil {
			return err
		}
		reason := "it was never given to a pet"
		if isTaken {
			reason = "another pet has it, or this one was changed"
		}
		file.wrong = append(file.wrong, fmt.Sprintf("id %d: %s\n", id, reason))
		return nil
	})
}

// petExport writes to a new file, or to stdout. What is damaged is left out.
func petExport(ctx context.Context, cmd *invocation) error {
	file := cmp.Or(cmd.argument, "-")
	pets, leftOut, err := cmd.exportPets(ctx, file)
	if err != nil {
		return fmt.Errorf("cannot export the pets of %s: %w", databaseName(cmd.db), err)
	}
	cmd.log.Info("pets exported",
		"pets", pets,
		"file", file)
	if len(leftOut.runs) > 0 {
		return fmt.Errorf("%s is damaged: all pets that can be read are exported, and those with "+
			"the ids %s are left out", databaseName(cmd.db), leftOut)
	}
	return nil
}

// exportPets returns how many pets it has written, and the ids that it could not read.
func (c *invocation) exportPets(ctx context.Context, file string) (
	pets int64, leftOut *idRuns, err error) {
	count := sqlOf("SELECT count(*) FROM pets")
	if status := c.pet.Status.stored(); status != 0 {
		count = sqlOf("SELECT count(*) FROM pets WHERE status = ?", status)
	}
	_, err = c.store.readInto(ctx, count, &pets) // 0, which is unknown, if that is damaged
	if err != nil && !isDamage(err) {
		return 0, nil, err
	}
	p := startProgress(c.stderr, "exporting", "pets", pets)
	defer p.end()
	if file == "-" {
		leftOut, err = c.writePets(ctx, c.stdout, p)
		return p.done.Load(), leftOut, err
	}
	partial, err := createFile(file)
	if err != nil {
		return 0, nil, err
	}
	defer partial.discard()
	leftOut, err = c.writePets(ctx, partial, p)
	if err != nil {
		return 0, nil, err
	}
	return p.done.Load(), leftOut, partial.publish()
}

// writePets writes pets as JSON, one a line.
func (c *invocation) writePets(ctx context.Context, to io.Writer, p *progress) (*idRuns, error) {
	out := bufio.NewWriterSize(to, maxBody)
	var line []byte
	leftOut, err := c.store.eachPet(ctx, c.pet.Status, func(pet *Pet) error {
		p.done.Add(1)
		line = append(pet.appendJSON(line[:0]), '\n')
		_, err := out.Write(line)
		return err
	})
	if err != nil {
		return nil, err
	}
	return leftOut, out.Flush()
}

// exportQuery and statusExportQuery read no table but pets, since the others may be damaged.
const (
	exportQuery       = selectPets + `WHERE id > ? ORDER BY id LIMIT ?`
	statusExportQuery = selectPets + `WHERE status = ? AND id > ? ORDER BY id LIMIT ?`
)

// eachPet calls do with each pet that has the status, by id. Status "" selects all. It goes on past
// what is damaged, and returns the ids there, not all of which need be those of pets.
func (s *store) eachPet(ctx context.Context, status PetStatus, do func(pet *Pet) error) (
	leftOut *idRuns, err error) {
	query := sqlOf(exportQuery)
	if status != "" {
		query = sqlOf(statusExportQuery, status.stored())
	}
	leftOut = &idRuns{}
	readPet := s.petReader()
	after := int64(0)
	row := func(scan scanner) (id int64, err error) {
		pet, err := readPet(scan)
		after = pet.ID
		if err == nil {
			return after, do(pet)
		}
		if s.engine.shared() {
			return 0, err
		}
		leftOut.add(idRun{after, after}) // it is no pet's row
		return after, nil
	}
	for {
		err := s.eachRow(ctx, after, query, row)
		if !isDamage(err) {
			return leftOut, err
		}
		last, isEnd, err := s.damageAfter(ctx, after, query)
		if err != nil {
			return leftOut, err
		}
		leftOut.add(idRun{after + 1, last})
		if isEnd {
			return leftOut, nil
		}
		after = last
	}
}
