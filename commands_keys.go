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

// issue makes a secret, stores the key with insert, and prints the text with the secret in place of
// $KEY. The id is 0 if insert has stored nothing. A key that cannot be printed is deleted, since
// nobody could use it, and undo is run in the same transaction.
func (c *invocation) issue(ctx context.Context, text string, key *apiKey,
	insert func(digest) (id int64, err error), undo ...statement) (id int64, err error) {
	token := newSecret(key.Test)
	key.LastFour = token.lastFour()
	id, err = insert(token.digest())
	if id == 0 && !errors.Is(err, errOutcome) {
		return 0, err // nothing is stored: an error, or nil if a condition did not hold
	}
	// From here on the key is stored or, if err is an errOutcome, may be.
	if err == nil {
		err = c.say(strings.ReplaceAll(text, "$KEY", string(token)))
	}
	if err == nil {
		return id, nil
	}
	// The error is not wrapped: main would take it for the error of a reader of stdout who has
	// left, and say nothing.
	reason := err.Error()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackWait)
	defer cancel()
	err = takeBack(ctx, c.store, token.digest(), undo...)
	if err == nil {
		return 0, errors.New("no key was made, since it cannot be shown: " + reason)
	}
	if id == 0 { // even if it was not there to take back: its write may arrive later
		return 0, fmt.Errorf("a key that was not shown may be stored; if petstore key list has "+
			"one that ends in %s, petstore key revoke ends it: %s", key.LastFour, reason)
	}
	return 0, fmt.Errorf("key %d is stored and cannot be shown; petstore key revoke %[1]d ends "+
		"it: %s; taking it back failed: %w", id, reason, err)
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
	insert := func(d digest) (int64, error) {
		return insertKey(ctx, cmd.store, key, d, "true") // without a condition
	}
	id, err := cmd.issue(ctx, "$KEY\n", key, insert)
	if err != nil {
		return err
	}
	cmd.log.Info("key created",
		"id", id,
		"name", key.Name,
		"plan", key.Plan,
		"perMinute", limits.PerMinute,
		"perDay", limits.PerDay,
		"expires", cmd.endAfter(key.lifetime),
		"test", cmd.test,
		"database", databaseName(cmd.db))
	return nil
}

// endAfter tells people when a key ends if its lifetime begins now.
func (c *invocation) endAfter(lifetime instant) string {
	if lifetime == 0 {
		return "never"
	}
	return inUTC(c.now + lifetime)
}

// keySet changes what the flags say, and leaves the rest.
func keySet(ctx context.Context, cmd *invocation) error {
	// The flags were read before the database was open. The plan of the key was not known then.
	if err := checkLimits(cmd); err != nil {
		return usageErrorf("%w; key %d has the plan %s", err, cmd.id, cmd.key.Plan)
	}
	changes := []statement{changeKey(cmd.id, cmd.plan, cmd.newName, cmd.quota)}
	if cmd.given("expires") {
		lifetime := instant(cmd.expires.Milliseconds())
		changes = append(changes, changeExpiry(cmd.id, cmd.now, lifetime))
		cmd.texts["expires"] = cmd.endAfter(lifetime) // for the log
	}
	results, err := cmd.store.edit(ctx, changes...)
	if err != nil {
		return err
	}
	if results[0].affected == 0 { // changeKey changes every key that is not revoked
		return fmt.Errorf("key %d is revoked; %smake a new one with petstore key create",
			cmd.id, cmd.successor())
	}
	cmd.log.Info("key changed", cmd.changes()...)
	cmd.warnOfSuccessor()
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
		return fmt.Errorf("key %d is revoked or expired; %smake a new one with petstore key create",
			cmd.id, cmd.successor())
	}
	successor := cmd.key
	successor.CreatedAt = cmd.now
	successor.Succeeds = keyID(cmd.id)
	overlapEnds := cmd.now + instant(cmd.overlap.Milliseconds())
	if cmd.key.ExpiresAt != 0 {
		overlapEnds = min(overlapEnds, cmd.key.ExpiresAt)
	}
	insert := func(d digest) (int64, error) {
		return rotateKey(ctx, cmd.store, &cmd.key, &successor, d, overlapEnds)
	}
	undo := restoreExpiry(&cmd.key, overlapEnds)
	id, err := cmd.issue(ctx, "$KEY\n", &successor, insert, undo)
	if err != nil {
		return err
	}
	cmd.log.Info("key rotated", "successor", id, "overlap", cmd.overlap.String())
	cmd.warnOfSuccessor()
	return nil
}

// successor says in a refusal which key to use in the place of one that was rotated.
func (c *invocation) successor() string {
	if c.key.SucceededBy == 0 {
		return ""
	}
	return fmt.Sprintf("it was rotated into key %d: name that one, or ", c.key.SucceededBy)
}

// warnOfSuccessor names the key into which this one was rotated before: it may be the one that was
// meant.
func (c *invocation) warnOfSuccessor() {
	if c.key.SucceededBy != 0 {
		c.log.Warn("this key was rotated before; its successor stays as it is",
			"successor", int64(c.key.SucceededBy))
	}
}

// keyList shows all keys. The successors of a key follow it, and are indented in the table.
func keyList(ctx context.Context, cmd *invocation) error {
	each := func(add func(*apiKey) error) error {
		return eachKeyByLine(ctx, cmd.store, cmd.now, add)
	}
	row := func(key *apiKey) string {
		if key.Succeeds != 0 {
			return "  " + keyRow(key)
		}
		return keyRow(key)
	}
	return printRows(cmd, keyHeading, row, each)
}

// keyShow shows one key.
func keyShow(_ context.Context, cmd *invocation) error {
	if cmd.json {
		text, err := json.MarshalIndent(&cmd.key, "", "  ")
		if err != nil { // a hand has stored an instant after the year 9999
			return err
		}
		return cmd.say(string(text) + "\n")
	}
	return printRows(cmd, keyHeading, keyRow, func(add func(*apiKey) error) error {
		return add(&cmd.key)
	})
}

const keyHeading = "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME\n"

// keyRow is the row of a key in the table.
func keyRow(key *apiKey) string {
	environment := "live"
	if key.Test {
		environment = "test"
	}
	return fmt.Sprintf("%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s\n",
		key.ID, environment, key.LastFour, key.Plan,
		key.UsedThisMinute, key.PerMinute, key.UsedToday, key.PerDay, keyState(key), key.Name)
}

// keyState says whether a key can be used, until when, and whether it uses what is deprecated.
func keyState(key *apiKey) string {
	text := key.State
	if text == "revoked" || text == "expired" {
		return text + " " + inUTC(cmp.Or(key.RevokedAt, key.ExpiresAt))
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

// keyUsage shows one of two tables: a row for each key, the busiest first, or for one key a row for
// each day with requests. With -json it prints an object for each key, which holds its days.
func keyUsage(ctx context.Context, cmd *invocation) error {
	since := int64(cmd.now/dayMillis) - cmd.days + 1 // the first day, counted from 1 January 1970
	each := func(add func(*lineUsage) error) error {
		// Without an ID, usageID is 0, which selects all keys. A limit of -1 is none.
		return eachLine(ctx, cmd.store, since, cmd.key.usageID, -1, add)
	}
	if cmd.id != 0 {
		return printRows(cmd, dayHeading, dayRows, each)
	}
	return printRows(cmd, useHeading, useRow, each)
}

const (
	tallyHeading = " ADMITTED\t  REFUSED\t  ERRORS"
	dayHeading   = "DAY\t" + tallyHeading + "\n"
	useHeading   = "ID\t" + tallyHeading + "\tPLAN\tNAME\n"
)

// tallyCells are a part of a row, below tallyHeading.
func tallyCells(t tally) string {
	return fmt.Sprintf("%9d\t%9d\t%8d", t.Admitted, t.Refused, t.Errors)
}

// useRow is the row of a key in the table of all.
func useRow(use *lineUsage) string {
	return fmt.Sprintf("%d\t%s\t%s\t%s\n", use.ID, tallyCells(use.total()), use.Plan, use.Name)
}

// dayRows are the rows in the table of one key.
func dayRows(use *lineUsage) (rows string) {
	for _, day := range use.Days {
		rows += day.Day + "\t" + tallyCells(day.tally) + "\n"
	}
	return rows
}

// printRows prints a report as it is read: with -json as an array, otherwise as a table. each calls
// add with each element. Tabs stand between the columns of the heading, and of the rows of an
// element, which end with a newline.
func printRows[T any](cmd *invocation, heading string, rows func(T) string,
	each func(add func(T) error) error) error {
	if cmd.json {
		return printArray(cmd, each)
	}
	table := tabwriter.NewWriter(cmd.stdout, 0, 0, 2, ' ', 0)
	// What is written is in memory until the table is flushed.
	_, _ = io.WriteString(table, heading)
	count := 0
	err := each(func(element T) error {
		_, _ = io.WriteString(table, rows(element))
		count++
		if count%10_000 == 0 { // so that the memory of a table is bounded
			return table.Flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return table.Flush()
}

// printArray prints the elements as JSON.
func printArray[T any](cmd *invocation, each func(add func(T) error) error) error {
	separator, end := "[", "[]\n"
	err := each(func(element T) error {
		text, err := json.MarshalIndent(element, "  ", "  ")
		if err == nil {
			err = cmd.say(separator + "\n  " + string(text))
		}
		separator, end = ",", "\n]\n"
		return err
	})
	if err != nil {
		return err
	}
	return cmd.say(end)
}

// warnOfForeignKeys logs that the service will accept no key.
func (c *invocation) warnOfForeignKeys(ctx context.Context) error {
	keys, err := foreignKeys(ctx, c.store, c.staging)
	if keys > 0 {
		c.log.Warn("all keys are of the other environment, and get 401: "+
			"is -staging right, and -db, and was the right copy restored?",
			"keys", keys,
			"environment", strings.ToLower(c.environment()))
	}
	return err
}

// printFirstKey makes the first key of a new database, unless a stop comes before that. A stop that
// keeps it from being shown is an error.
func printFirstKey(stop context.Context, cmd *invocation, s *store, url string) error {
	cmd.store = s
	ctx, cancel := context.WithTimeout(stop, commandWait)
	defer cancel()
	var isNew bool
	_, err := s.readInto(ctx, sqlOf("SELECT "+noKeys), &isNew)
	if stop.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if !isNew {
		return cmd.warnOfForeignKeys(ctx)
	}
	key := &apiKey{
		Name:      "first key",
		Plan:      freePlan,
		Test:      cmd.staging,
		CreatedAt: cmd.now,
	}
	text := strings.ReplaceAll(webFile("first-key.txt"), "$URL", url)
	notMade := false
	id, err := cmd.issue(ctx, text, key, func(d digest) (int64, error) {
		id, err := insertKey(ctx, s, key, d, noKeys)
		notMade = err != nil && !errors.Is(err, errOutcome)
		return id, err
	})
	if notMade && stop.Err() != nil {
		return nil
	}
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
