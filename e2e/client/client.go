// Package client is what oapi-codegen makes of the service's description, as users of the service
// would: client.gen.go is generated before this module is built, and is not kept.
package client

//go:generate go tool oapi-codegen -config oapi.yaml -o client.gen.go ../../web/openapi.json

// The generated file needs this module. It is named here too, so that go.mod is tidy without it.
import _ "github.com/oapi-codegen/runtime"
