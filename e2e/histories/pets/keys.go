package pets

import "github.com/anishathalye/porcupine"

// Use is a request with a key, whose output is whether it is let in. Without an output it is what
// one service makes of petstore key revoke.
type Use struct{ Service, Key int }

// keysModel is what a service makes of one key: it lets it in until it was revoked.
var keysModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		uses := map[any][]porcupine.Operation{}
		for _, o := range history {
			uses[o.Input] = append(uses[o.Input], o)
		}
		for _, part := range uses {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return false },
	Step: func(state, _, output any) (legal bool, next any) {
		if output == nil {
			return true, true
		}
		isRevoked := state.(bool)
		return output.(bool) != isRevoked, isRevoked
	},
}

// CheckKeys reports whether services can have let keys in, and refused them, as a history tells.
func CheckKeys(operations []porcupine.Operation) bool {
	return porcupine.CheckOperations(keysModel, operations)
}
