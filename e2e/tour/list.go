package tour

import "regexp"

// Exercises are in the order of the course.
var Exercises = []Exercise{
	{
		Sitting: 1, Name: "drain", Task: "a stop that loses nothing",
		Hint: "Shutdown of http.Server waits, and Serve does not. Give the wait a context of " +
			"its own.",
	},
	{
		Sitting: 1, Name: "refuse", Task: "refusals in one form",
		Hint: "One function that writes every refusal, a return behind each call of it, and a " +
			"route for all that no other route takes.",
	},
	{
		Sitting: 1, Name: "header", Task: "a header on every response", on: all,
		Breaks: "TestAPetIsReturnedAsItWasCreated",
		Hint: "Every response sends its status once, just before its headers leave. Which " +
			"method of response does that?",
	},
	{
		Sitting: 1, Name: "digest", Task: "a key that neither a copy nor the time shows",
		Hint: "Store the SHA-256 of the key, and compare it with that of what was sent. The " +
			"loop may stay.",
	},
	{
		Sitting: 1, Name: "secret", Task: "a key that no format shows", on: all,
		Hint: "Implement fmt.Formatter. A fmt.State is an io.Writer: a text can be written to " +
			"it without fmt.",
	},
	{
		Sitting: 1, Name: "timeout", Task: "an error code of its own (afterwards)", on: all,
		Hint: "A code is a constant and a line of statusOfCode. readBody can tell the errors " +
			"apart by what they wrap.",
	},
	{
		Sitting: 2, Name: "plan", Task: "a new plan (a warm-up)", on: all,
		Breaks: "TestEveryDocumentShowsThePlans",
		Hint:   "One entry in the table of plans.",
	},
	{
		Sitting: 2, Name: "count", Task: "a counter that loses no update",
		stand: &standIn{
			file: "main.go", pattern: regexp.MustCompile(`\bused\s+atomic\.Int64\b`),
			new: "used slowly", rest: "\ntype slowly struct{ atomic.Int64 }\n",
		},
		Hint: "A lock that is held from the read to the write, or a loop around CompareAndSwap.",
	},
	{
		Sitting: 2, Name: "race", Task: "break it: lose an update",
		on:     all,
		Breaks: "TestOfParallelRequestsExactlyTheLimitIsAdmitted",
		stand: &standIn{
			file: "usage.go", pattern: regexp.MustCompile(`\bmu\s+sync\.Mutex\b`),
			new: "mu watchedMutex", rest: "\nvar _ sync.Mutex\n",
		},
		Hint: "A copy is made under the lock, charged without it, and written back under it.",
	},
	{
		Sitting: 2, Name: "merge", Task: "two services that count one key",
		Hint: "What was admitted since the last flush is one number; what is stored, by all, is " +
			"another.",
	},
	{
		Sitting: 2, Name: "strict", Task: "bodies read strictly",
		Hint: "DisallowUnknownFields; pointers, which stay nil when a field is missing or null; " +
			"and behind the object nothing but io.EOF.",
	},
	{
		Sitting: 2, Name: "hint", Task: "a message that helps", on: []string{"model.go"},
		Hint: "strings.EqualFold compares two names in any case.",
	},
	{
		Sitting: 3, Name: "sync", Task: "on disk before it is confirmed",
		Hint: "The disk has two methods, and their order matters.",
	},
	{
		Sitting: 3, Name: "page", Task: "pages of a list that changes",
		Hint: "A page begins after an id, wherever that stands now, and whether it is still " +
			"there.",
	},
	{
		Sitting: 3, Name: "once", Task: "a create that is stored once",
		stand: &standIn{
			file: "main.go", pattern: regexp.MustCompile(`(?m)^func create\(`), new: "func remote(",
		},
		Hint: "A key for each add, for all its tries, that nobody else draws; and a set of keys " +
			"on the other machine.",
	},
	{
		Sitting: 3, Name: "repeat", Task: "a client that repeats safely", check: checkRepeat,
		Hint: "The header Idempotency-Key has one value for all tries of a pet, and no other " +
			"pet has it.",
	},
	{
		Sitting: 3, Name: "honest", Task: "a test that finds lies (afterwards)", check: checkHonest,
		Hint: "An engine whose write waits shows who is answered too early; PRAGMA synchronous, " +
			"on the connection that writes, shows what SQLite was told.",
	},
}
