// Package client is what oapi-codegen makes of the service's description, as users of the service
// would: client.gen.go is generated before this module is built, and is not kept.
package client

//go:generate go tool oapi-codegen -config oapi.yaml -o client.gen.go ../../web/openapi.json
