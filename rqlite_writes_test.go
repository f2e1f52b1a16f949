package main

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// garbledBodies are what a node says with status 200 when nobody knows what was done.
var garbledBodies = map[string]string{
	"leadership that was lost":         `{"error":"leadership lost while committing log"}`,
	"forwarding that failed":           `{"results":[],"error":"node failed to process Execute"}`,
	"HTML":                             "<html>Welcome to nginx!</html>",
	"nothing":                          "",
	"JSON that was cut off":            `{"results":[{"last_insert_id":1,"rows_aff`,
	"JSON of another kind":             `["results"]`,
	"no results":                       `{}`,
	"fewer results than statements":    `{"results":[]}`,
	"more results than statements":     `{"results":[{},{},{},{},{},{},{},{},{}]}`,
	"numbers that are texts":           `{"results":[{"last_insert_id":"1"}]}`,
	"a number that is none of 64 bits": `{"results":[{"last_insert_id":9223372036854775808}]}`,
}

// hang never responds.
func hang(_ *fakeNode, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// garbledAnswers are those, and others after which nobody knows what was done.
func garbledAnswers() map[string]fakeAnswer {
	answers := map[string]fakeAnswer{
		"a reset":       reset,
		"a timeout":     hang,
		"a redirect":    redirect,
		"another 503":   respond(503, "store is not open\n"),
		"another 500":   respond(500, "leader address: what?\n"),
		"a bad request": respond(400, "invalid JSON body\n"),
	}
	for what, body := range garbledBodies {
		answers[what] = respond(200, body)
	}
	return answers
}

// TestWhatMayHaveBeenDoneIsNotRepeated: nobody knows what became of such a write, and that is all
// that is said. A read may be repeated.
func TestWhatMayHaveBeenDoneIsNotRepeated(t *testing.T) {
	for what, answer := range garbledAnswers() {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
				answerOnce(c, answer)
				wantTime(t, "the write", 0, leaderWait+statusWait, errOutcome, func() error {
					_, err := s.createPet(rex)
					return err
				})
				c.wantArrived(writeTo(0))
				if unknown := clusterEngine(s).unknown.Load(); unknown != 1 {
					t.Errorf("%d outcomes are counted as unknown", unknown)
				}
				answerOnce(c, answer)
				if ids, _ := pageIDs(t, s, "", 20, 0); len(ids) != 0 {
					t.Errorf("the read gives %v", ids)
				}
				const read = "0 POST /db/query?level=linearizable"
				c.wantArrived(read, read)
				wantNextID(t, s, 1)
			})
		})
	}
}

// TestAWriteThatFailsAtOneNodeMayBeStored by the others: its disk alone may be full.
func TestAWriteThatFailsAtOneNodeMayBeStored(t *testing.T) {
	onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
		for _, results := range []string{
			`{},{"error":"database or disk is full"}`,
			`{"error":"disk I/O error"}`, // of the guard, which does not hold for another reason
		} {
			answerOnce(c, respond(200, `{"results":[`+results+`]}`))
			if _, err := s.createPet(rex); !errors.Is(err, errOutcome) {
				t.Errorf("the write says %v", err)
			}
			if writes := c.arrived(); writes[0] != writeTo(0) || slices.Contains(writes[1:], writes[0]) {
				t.Errorf("sent was %q", writes)
			}
		}
		wantNextID(t, s, 1)
	})
}

// TestAConnectionThatBreaksIsNotUsedForARepeat, over a real network: net/http repeats some requests
// by itself.
func TestAConnectionThatBreaksIsNotUsedForARepeat(t *testing.T) {
	c := newCluster(t, 1)
	s, _ := openCluster(t, c, openToServe)
	for range 3 { // on connections that were used before, and on a new one
		mustCreate(t, s, rex)
		c.arrived()
		answerOnce(c, reset)
		if _, err := s.createPet(rex); !errors.Is(err, errOutcome) {
			t.Errorf("the write says %v", err)
		}
		c.wantArrived(writeTo(0))
	}
}

// TestTheServiceOnAGarbledEngine is 503, or 500 if the values are garbled, and never a success.
// What is listed in the end is what was acknowledged, and all requests are counted.
func TestTheServiceOnAGarbledEngine(t *testing.T) {
	garbage := garbledAnswers()
	garbage["no leader"] = respond(503, "leader not found\n")
	garbage["no identity"] = respond(200, `{"results":[{"error":"disk I/O error"}]}`)
	garbledValues := map[string]bool{}
	for what, results := range map[string]string{
		"results with nothing in them":        `{}`,
		"empty results for more statements":   `{},{},{}`,
		"values that are null":                `{"values":[[null,null,null]]}`,
		"values of the wrong types":           `{"values":[[1,"2",[]]]}`,
		"a flag that is a text":               `{"values":[["[]",0,"maybe"]]}`,
		"a flag that is neither true nor not": `{"values":[["[]",0,2]]}`,
		"too few values":                      `{"values":[["[]"]]}`,
	} {
		garbage[what] = respond(200, `{"results":[{},`+results+`]}`) // the first is of the guard
		garbledValues[what] = true
	}
	for what, answer := range garbage {
		t.Run(what, func(t *testing.T) {
			onFakeCluster(t, func(t *testing.T, c *fakeCluster, s *store) {
				shop := newClusterShop(t, c, s)
				shop.list().is(200).says("[]")
				c.always("/db/", answer)
				replies := []reply{
					shop.list(),
					shop.post(rexBody),
					shop.post("Idempotency-Key: once", rexBody),
					shop.get("/v1/pets?status=sold"),
				}
				if !garbledValues[what] { // some of them may be a pet, or none
					replies = append(replies, shop.get("/v1/pets/1"))
				}
				for _, reply := range replies {
					if reply.status != 503 && (!garbledValues[what] || reply.status != 500) {
						t.Errorf("%s is %d %s", reply.what, reply.status, reply.body)
					}
				}
				if err := shop.service.usage.flush(t.Context(), time.Now); err == nil {
					t.Error("the usage is said to be written")
				}
				if strings.Contains(c.log.String(), "panic") {
					t.Errorf("the log says %s", c.log)
				}
				c.when(nil)
				shop.list().is(200).says("[]")
				must(t, shop.service.usage.flush(t.Context(), time.Now))
				if n := c.number("SELECT day_used FROM usage"); n != int64(len(replies)+2) {
					t.Errorf("%d requests are counted", n)
				}
			})
		})
	}
}

// newClusterShop is a service on a store of a cluster, and a client of it.
func newClusterShop(t *testing.T, c *fakeCluster, s *store) *shop {
	t.Helper()
	key := mustInsertKey(t, s, apiKey{Plan: "pro", CreatedAt: instantOf(time.Now())})
	log := newLogger(c.log, "json", slog.LevelInfo)
	return &shop{
		t:       t,
		service: newService(s, settings{}, log),
		key:     string(key),
	}
}
