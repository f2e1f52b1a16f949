package histories

import (
	"fmt"
	"net/http"
	"strconv"
)

// The model of a key's limits on one service. It was written from what clients are promised, and
// knows windows, strikes, and bans, but no flush and no database. All times are Unix milliseconds.

const (
	minuteLength = 12_000 // which are 60_000 but for shortMinute
	dayLength    = 24 * 60 * minuteLength
	banLength    = 5_000
)

type quota struct{ minute, day int64 }

// window is what was used of a minute or a day.
type window struct{ ends, used int64 }

func (w window) runs(now int64) bool { return now < w.ends }

// plus counts a request, which begins a window if none runs.
func (w window) plus(now, length int64) window {
	if !w.runs(now) {
		w = window{ends: now + length}
	}
	w.used++
	return w
}

// bucket is what a response tells of a window.
type bucket struct{ limit, left, resets int64 }

func (w window) bucket(now, limit int64) bucket {
	if !w.runs(now) {
		return bucket{limit, limit, now}
	}
	return bucket{limit, max(0, limit-w.used), w.ends}
}

type usage struct{ minute, day window }

// account is one way in which a key may stand.
type account struct {
	usage
	strikes     window
	retryAt     int64 // when the Retry-After of all refusals has passed
	bannedUntil int64
	plan        int // which of the key's quotas holds

	// What a kill leaves, once it is chosen.
	isChosen bool
	stored   usage
}

// answer is what a request at an instant gets, and how the key stands then.
func (a account) answer(now int64, q quota) (account, reply) {
	minute := a.minute.bucket(now, q.minute)
	day := a.day.bucket(now, q.day)
	isBanned := now < a.bannedUntil
	isRefused := minute.left == 0 || day.left == 0
	if !isBanned && !isRefused {
		a.minute = a.minute.plus(now, minuteLength)
		a.day = a.day.plus(now, dayLength)
		minute = a.minute.bucket(now, q.minute)
		day = a.day.bucket(now, q.day)
		if minute.left < day.left {
			return a, newReply("", now, minute, minute, day)
		}
		return a, newReply("", now, day, minute, day)
	}
	// Of two that refuse, the one that resets later is shown.
	refusing := day
	if day.left > 0 || minute.left == 0 && minute.resets > day.resets {
		refusing = minute
	}
	if !isBanned {
		a = a.refused(now, q, refusing)
	}
	if now >= a.bannedUntil {
		return a, newReply("rate_limited", now, refusing, minute, day)
	}
	minute.left = 0
	minute.resets = a.bannedUntil
	if isRefused {
		minute.resets = max(minute.resets, refusing.resets)
	}
	return a, newReply("key_banned", now, minute, minute, day)
}

// refused notes a refusal. It is a strike if an earlier Retry-After has not passed, and more
// strikes in a minute than the minute's limit are a ban.
func (a account) refused(now int64, q quota, refusing bucket) account {
	if now < a.retryAt {
		if !a.strikes.runs(now) && a.minute.runs(now) {
			a.strikes = window{ends: a.minute.ends}
		}
		a.strikes = a.strikes.plus(now, minuteLength)
	}
	if a.strikes.used > q.minute {
		a.strikes = window{}
		a.bannedUntil = now + banLength
	}
	a.retryAt = max(a.retryAt, now+1000*retryAfter(now, refusing))
	return a
}

// without forgets what is over.
func (a account) without(now int64) account {
	for _, w := range []*window{&a.minute, &a.day, &a.strikes} {
		if !w.runs(now) {
			*w = window{}
		}
	}
	if a.retryAt <= now {
		a.retryAt = 0
	}
	if a.bannedUntil <= now {
		a.bannedUntil = 0
	}
	return a
}

// seconds are whole ones, rounded up.
func seconds(millis int64) int64 { return (millis + 999) / 1000 }

func retryAfter(now int64, b bucket) int64 { return max(1, seconds(b.resets-now)) }

// reply is what a response says of the limits.
type reply struct {
	code                    string // of the refusal, or "" for any other response
	limit, remaining, reset int64  // X-RateLimit
	minute, day             rateLimit
	retryAfter              int64
}

// rateLimit is what RateLimit-Policy and RateLimit say of a bucket.
type rateLimit struct{ limit, left, seconds int64 }

func newReply(code string, now int64, shown, minute, day bucket) reply {
	r := reply{
		code:      code,
		limit:     shown.limit,
		remaining: shown.left,
		reset:     seconds(shown.resets),
		minute:    rateLimit{minute.limit, minute.left, seconds(minute.resets - now)},
		day:       rateLimit{day.limit, day.left, seconds(day.resets - now)},
	}
	if code != "" {
		r.retryAfter = retryAfter(now, shown)
	}
	return r
}

// replyOf reads a response with the code of its error, if it is one.
func replyOf(h http.Header, code string) (reply, error) {
	r := reply{code: code}
	for _, header := range []struct {
		name, form string
		numbers    []any
	}{
		{"X-RateLimit-Limit", "%d", []any{&r.limit}},
		{"X-RateLimit-Remaining", "%d", []any{&r.remaining}},
		{"X-RateLimit-Reset", "%d", []any{&r.reset}},
		{"RateLimit-Policy", `"minute";q=%d;w=60, "day";q=%d;w=86400`,
			[]any{&r.minute.limit, &r.day.limit}},
		{"RateLimit", `"minute";r=%d;t=%d, "day";r=%d;t=%d`,
			[]any{&r.minute.left, &r.minute.seconds, &r.day.left, &r.day.seconds}},
	} {
		if _, err := fmt.Sscanf(h.Get(header.name), header.form, header.numbers...); err != nil {
			return r, fmt.Errorf("%s is %q", header.name, h.Get(header.name))
		}
	}
	if text := h.Get("Retry-After"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return r, err
		}
		r.retryAfter = seconds
	}
	return r, nil
}
