package histories

import (
	"testing"
	"time"

	"petstore/e2e/planted"
)

// limitFaults are changes after which the service does not limit as it promises: a file, and texts
// in it, each followed by what stands in its place.
var limitFaults = []struct {
	name, file string
	changes    []string
}{
	{"a window admits one request too many", "limits.go", []string{
		"	d := u.standing(a, now)\n",
		"	more := *a\n	more.quota = quota{a.PerMinute + 1, a.PerDay + 1}\n" +
			"	d := u.standing(&more, now)\n",
	}},
	{"a restart forgets all usage", "usage.go", []string{
		"	_, err := l.store.readInto(context.Background(), query, stored.columns()...)\n",
		"	var err error\n	_ = query\n",
	}},
	{"a kill forgets three seconds of usage", "main.go", []string{
		`every(flushTick, "write usage"`, `every(3*time.Second, "write usage"`,
	}},
	{"a change of a quota holds three seconds later", "memory.go", []string{
		"lookEvery = 250 * time.Millisecond", "lookEvery = 3 * time.Second",
		"trustFor  = time.Second", "trustFor  = 4 * time.Second",
	}},
}

// TestPlantedFaultsOfLimitsAreFound makes copies of the service, each with a fault, and looks
// whether the model fails to explain what their callers get. Two of them are drawn.
func TestPlantedFaultsOfLimitsAreFound(t *testing.T) {
	t.Parallel()
	for _, f := range limitFaults {
		if err := planted.Check("../..", f.file, f.changes); err != nil {
			t.Error(err)
		}
	}
	for _, f := range planted.Some(t.Name(), 2, limitFaults) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			changes := planted.Changes{f.file: f.changes, "model.go": shortMinute}
			program, err := planted.BuildAhead("../..", t.TempDir(), 0, changes)
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				r := recordCalls(t, program, 8*time.Second)
				if err = r.replay(); err != nil {
					t.Log(err)
					return
				}
			}
			t.Error("five recordings do not show the fault")
		})
	}
}
