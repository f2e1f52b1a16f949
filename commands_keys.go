package main

// What the commands about keys do, and the tables that they print.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// takeBackWait is short, because a signal may have come: the command ends within half a second.
const takeBackWait = 300 * time.Millisecond

// issue makes the text of a key, stores the key with insert, and prints it in the place of $KEY in
// the text. The id is 0 if insert has stored nothing. A key that cannot be printed is taken back
// together with what undo tells, since nobody could use it.
func issue(ctx context.Context, s *store, stdout io.Writer, text string, key *apiKey,
	insert func(digest) (id int64, err error), undo ...statement) (id int64, err error) {
	token := newSecret(key.Test)
	key.LastFour = token.lastFour()
	id, err = insert(token.digest())
	if id == 0 && !errors.Is(err, errOutcome) {
		return 0, err
	}
	if err == nil {
		_, err = io.WriteString(stdout, strings.ReplaceAll(text, "$KEY", string(token)))
	}
	if err == nil {
		return id, nil
	}
	// It is not wrapped: main would take it for the error of a reader of stdout who has left, and
	// say nothing.
	reason := err.Error()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackWait)
	defer cancel()
	err = takeBack(ctx, s, token.digest(), undo...)
	if err == nil {
		return 0, errors.New("no key was made, since it cannot be shown: " + reason)
	}
	if id == 0 {
		return 0, fmt.Errorf("a key that was not shown may be stored; if petstore key list has "+
			"one that ends in %s, petstore key revoke ends it: %s", key.LastFour, reason)
	}
	return 0, fmt.Errorf("key %d is stored and cannot be shown; petstore key revoke %[1]d ends "+
		"it: %s; to take it back failed: %w", id, reason, err)
}

func keyCreate(ctx context.Context, cmd *invocation) error {
	key := &apiKey{
		Name:      cmd.newName,
		Plan:      cmp.Or(cmd.plan, freePlan),
		account:   account{quota: cmd.quota},
		Test:      cmd.test,
		CreatedAt: cmd.now,
		lifetime:  instant(cmd.expires.Milliseconds()),
	}
	limits := cmp.Or(planQuota(key.Plan), cmd.quota)
	expires := "never"
	if cmd.expires > 0 {
		expires = inUTC(cmd.now + key.lifetime)
	}
	insert := func(d digest) (int64, error) {
		return insertKey(ctx, cmd.store, key, d, "true") // without a condition
	}
	id, err := issue(ctx, cmd.store, cmd.stdout, "$KEY\n", key, insert)
	if err != nil {
		return err
	}
	cmd.log.Info("key created",
		"id", id,
		"name", key.Name,
		"plan", key.Plan,
		"perMinute", limits.PerMinute,
		"perDay", limits.PerDay,
		"expires", expires,
		"test", cmd.test,
		"database", databaseName(cmd.db))
	return nil
}

// keySet changes what the flags say, and leaves the rest.
func keySet(ctx context.Context, cmd *invocation) error {
	// The flags were read before the database was open. The plan of the key is known only now.
	if err := checkLimits(cmd); err != nil {
		return usageErrorf("%w; key %d has the plan %s", err, cmd.id, cmd.key.Plan)
	}
	changes := []statement{changeKey(cmd.id, cmd.plan, cmd.newName, cmd.quota)}
	if cmd.given("expires") {
		lifetime := instant(cmd.expires.Milliseconds())
		changes = append(changes, changeExpiry(cmd.id, cmd.now, lifetime))
	}
	results, err := cmd.store.edit(ctx, changes...)
	if err != nil {
		return err
	}
	if results[0].affected == 0 { // changeKey changes every key that is not revoked
		return fmt.Errorf("key %d is revoked; make a new one with petstore key create", cmd.id)
	}
	cmd.log.Info("key changed", cmd.changes()...)
	return nil
}

func keyRevoke(ctx context.Context, cmd *invocation) error {
	results, err := cmd.store.edit(ctx, revokeKey(cmd.id, cmd.now))
	if err != nil {
		return err
	}
	message := "key revoked"
	if results[0].affected == 0 {
		message = "key was revoked already"
	}
	cmd.log.Info(message)
	return nil
}

func keyUnban(ctx context.Context, cmd *invocation) error {
	if cmd.key.BannedUntil == 0 {
		cmd.log.Info("key is not banned")
		return nil
	}
	if _, err := cmd.store.edit(ctx, unban(cmd.key.usageID, cmd.now)); err != nil {
		return err
	}
	cmd.log.Info("key unbanned")
	return nil
}

// keyRotate makes a successor. It is charged to the same usage, so that two keys in the overlap do
// not double the quota, and it gets the same lifetime, which starts now.
func keyRotate(ctx context.Context, cmd *invocation) error {
	if !cmd.key.usable(cmd.now) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create",
			cmd.id)
	}
	// Until the successor is stored, its ID is that of the old key: rotateKey reads it there.
	successor := cmd.key
	successor.CreatedAt = cmd.now
	successor.Succeeds = keyID(cmd.id)
	overlapEnds := cmd.now + instant(cmd.overlap.Milliseconds())
	if cmd.key.ExpiresAt != 0 {
		overlapEnds = min(overlapEnds, cmd.key.ExpiresAt)
	}
	insert := func(d digest) (int64, error) {
		return rotateKey(ctx, cmd.store, &successor, d, overlapEnds)
	}
	undo := restoreExpiry(&cmd.key, overlapEnds)
	id, err := issue(ctx, cmd.store, cmd.stdout, "$KEY\n", &successor, insert, undo)
	if err != nil {
		return err
	}
	cmd.log.Info("key rotated", "successor", id, "overlap", cmd.overlap.String())
	return nil
}

const keyHeading = "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME"

// keyList shows all keys.
func keyList(ctx context.Context, cmd *invocation) error {
	list := cmd.newListing(keyHeading)
	addRow := func(key *apiKey) error {
		return list.add(key, keyRow(key))
	}
	// eachKey appends an AND to the clause.
	err := eachKey(ctx, cmd.store, cmd.now, addRow, "WHERE true")
	return list.end(err)
}

// keyRow is the row of a key in the table.
func keyRow(key *apiKey) string {
	environment := "live"
	if key.Test {
		environment = "test"
	}
	return fmt.Sprintf("%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s",
		key.ID, environment, key.LastFour, key.Plan,
		key.UsedThisMinute, key.PerMinute, key.UsedToday, key.PerDay, keyState(key), key.Name)
}

// keyState says whether a key can be used, until when, and whether it uses what is deprecated.
func keyState(key *apiKey) string {
	text := key.State
	if text == "revoked" || text == "expired" {
		return text
	}
	if text == "banned" {
		text += " to " + inUTC(key.BannedUntil)
	}
	if key.ExpiresAt != 0 {
		text += "; ends " + inUTC(key.ExpiresAt)
	}
	if key.DeprecatedUseAt != 0 {
		text += "; deprecated call " + key.DeprecatedUseAt.time().Format(time.DateOnly)
	}
	return text
}

// inUTC is an instant for people, to the second.
func inUTC(at instant) string { return at.time().Format("2006-01-02 15:04:05Z") }

// keyShow shows one key.
func keyShow(_ context.Context, cmd *invocation) error {
	key := &cmd.key
	if cmd.json {
		text, _ := json.MarshalIndent(key, "", "  ") // of numbers and texts
		return cmd.say(string(text) + "\n")
	}
	list := cmd.newListing(keyHeading)
	return list.end(list.add(key, keyRow(key)))
}

const usageHeading = " ADMITTED\t  REFUSED\t  ERRORS"

// columns are those of a table below usageHeading.
func (t tally) columns() string {
	return fmt.Sprintf("%9d\t%9d\t%8d", t.Admitted, t.Refused, t.Errors)
}

// keyUsage shows one of two tables: a row for each key, the busiest first, or for one key a row for
// each day with requests. With -json it prints an object for each key, which holds its days.
func keyUsage(ctx context.Context, cmd *invocation) error {
	since := int64(cmd.now/dayMillis) - cmd.days + 1 // the first day, counted from 1 January 1970
	byDay := cmd.id != 0 && !cmd.json
	heading := "ID\t" + usageHeading + "\tPLAN\tNAME"
	if byDay {
		heading = "DAY\t" + usageHeading
	}
	list := cmd.newListing(heading)
	// Without an ID, usageID is 0, which selects all keys. A limit of -1 is none.
	err := eachUsage(ctx, cmd.store, since, cmd.key.usageID, -1, func(use *lineUsage) error {
		if byDay {
			for _, day := range use.Days {
				// Only -json needs the element, and byDay implies that it is not given.
				if err := list.add(nil, day.Day+"\t"+day.columns()); err != nil {
					return err
				}
			}
			return nil
		}
		row := fmt.Sprintf("%d\t%s\t%s\t%s", use.ID, use.total().columns(), use.Plan, use.Name)
		return list.add(use, row)
	})
	return list.end(err)
}

// listing writes the rows of a report as they are read: with -json as an array, otherwise a table.
type listing struct {
	*invocation
	table *tabwriter.Writer
	rows  int
}

// newListing begins a report. Tabs stand between the columns of the heading, and of the rows.
func (c *invocation) newListing(heading string) *listing {
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	// The heading is in memory until the table is flushed. With -json nothing flushes the table.
	_, _ = fmt.Fprintln(table, heading)
	return &listing{
		invocation: c,
		table:      table,
	}
}

// add writes an element of the array, or a row of the table. Rows are aligned 10,000 at a time, so
// that the memory of a table is bounded.
func (l *listing) add(element any, row string) error {
	l.rows++
	if l.json {
		separator := ","
		if l.rows == 1 {
			separator = "["
		}
		text, _ := json.MarshalIndent(element, "  ", "  ") // of numbers and texts
		return l.say(separator + "\n  " + string(text))
	}
	if _, err := fmt.Fprintln(l.table, row); err != nil {
		return err
	}
	if l.rows%10_000 == 0 {
		return l.table.Flush()
	}
	return nil
}

// end ends the report, unless there was an error.
func (l *listing) end(err error) error {
	if err != nil {
		return err
	}
	if !l.json {
		return l.table.Flush()
	}
	if l.rows == 0 {
		return l.say("[]\n")
	}
	return l.say("\n]\n")
}

// printFirstKey makes the first key of a new database, unless a stop comes before that. A stop that
// keeps it from being shown is an error.
func printFirstKey(stop context.Context, cmd *invocation, pets *store, url string) error {
	ctx, cancel := context.WithTimeout(stop, commandWait)
	defer cancel()
	var isNew bool
	_, err := pets.readInto(ctx, sqlOf("SELECT "+noKeys), &isNew)
	if stop.Err() != nil {
		return nil
	}
	if err != nil || !isNew {
		return err
	}
	key := &apiKey{
		Name:      "first key",
		Plan:      freePlan,
		Test:      cmd.staging,
		CreatedAt: cmd.now,
	}
	text := strings.ReplaceAll(webFile("first-key.txt"), "$URL", url)
	id, err := issue(ctx, pets, cmd.stdout, text, key, func(d digest) (int64, error) {
		return insertKey(ctx, pets, key, d, noKeys)
	})
	if err != nil {
		return err
	}
	if id == 0 {
		cmd.log.Info("another program has made the first key meanwhile")
		return nil
	}
	cmd.log.Info("key created", "id", id, "name", key.Name, "plan", key.Plan)
	return nil
}
