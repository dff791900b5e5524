package rls

import (
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	_ "google.golang.org/protobuf/types/known/durationpb" // registers the file that the schema imports
	_ "google.golang.org/protobuf/types/known/wrapperspb" // the same
)

// Names of the service.
const (
	Service = "envoy.service.ratelimit.v3.RateLimitService"
	Method  = "ShouldRateLimit"
	File    = "envoy/service/ratelimit/v3/rls.proto" // the file that describes the service
)

// The schema is a subset of Envoy's: the messages and fields that a rate limit
// service reads and writes. It is not registered with the protobuf library,
// which allows each name only once, because a program that embeds a node may
// link Envoy's own messages.

// Schema returns the files that describe the service and its messages.
var Schema = sync.OnceValue(func() *protoregistry.Files {
	files := new(protoregistry.Files)
	for _, f := range schemaFiles {
		file, err := protodesc.NewFile(f, resolver{files})
		if err == nil {
			err = files.RegisterFile(file)
		}
		if err != nil {
			panic("rls: " + err.Error()) // the files are fixed
		}
	}
	return files
})

// resolver finds descriptions in files, and else among those that are registered in the program.
type resolver struct{ files *protoregistry.Files }

// FindFileByPath implements protodesc.Resolver.
func (r resolver) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if f, err := r.files.FindFileByPath(path); err == nil {
		return f, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

// FindDescriptorByName implements protodesc.Resolver.
func (r resolver) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d, err := r.files.FindDescriptorByName(name); err == nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// Resolver returns a resolver for the schema and everything that is registered in the program.
func Resolver() protodesc.Resolver { return resolver{Schema()} }

// messageOf returns the description of a message of the schema.
func messageOf(name protoreflect.FullName) protoreflect.MessageDescriptor {
	d, err := Schema().FindDescriptorByName(name)
	if err != nil {
		panic("rls: " + err.Error()) // the names are fixed
	}
	return d.(protoreflect.MessageDescriptor)
}

const (
	corePackage    = "envoy.config.core.v3"
	typePackage    = "envoy.type.v3"
	commonPackage  = "envoy.extensions.common.ratelimit.v3"
	servicePackage = "envoy.service.ratelimit.v3"
	coreFile       = "envoy/config/core/v3/base.proto"
	unitFile       = "envoy/type/v3/ratelimit_unit.proto"
	commonFile     = "envoy/extensions/common/ratelimit/v3/ratelimit.proto"
)

var schemaFiles = []*descriptorpb.FileDescriptorProto{
	{
		Name: proto.String(coreFile), Package: proto.String(corePackage), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			messageType("HeaderValue", field(1, "key", text), field(2, "value", text)),
		},
	},
	{
		Name: proto.String(unitFile), Package: proto.String(typePackage), Syntax: proto.String("proto3"),
		EnumType: []*descriptorpb.EnumDescriptorProto{enumType("RateLimitUnit", unitNames)},
	},
	{
		Name: proto.String(commonFile), Package: proto.String(commonPackage), Syntax: proto.String("proto3"),
		Dependency: []string{unitFile, "google/protobuf/wrappers.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			nest(messageType("RateLimitDescriptor",
				repeated(field(1, "entries", "."+commonPackage+".RateLimitDescriptor.Entry")),
				field(2, "limit", "."+commonPackage+".RateLimitDescriptor.RateLimitOverride"),
				field(3, "hits_addend", ".google.protobuf.UInt64Value"),
				field(4, "is_negative_hits", flag)),
				messageType("Entry", field(1, "key", text), field(2, "value", text)),
				messageType("RateLimitOverride", field(1, "requests_per_unit", number),
					enumField(2, "unit", "."+typePackage+".RateLimitUnit")),
			),
		},
	},
	{
		Name: proto.String(File), Package: proto.String(servicePackage), Syntax: proto.String("proto3"),
		Dependency: []string{coreFile, commonFile, "google/protobuf/duration.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			messageType("RateLimitRequest", field(1, "domain", text),
				repeated(field(2, "descriptors", "."+commonPackage+".RateLimitDescriptor")),
				field(3, "hits_addend", number)),
			responseRecord(),
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: proto.String("RateLimitService"),
			Method: []*descriptorpb.MethodDescriptorProto{{
				Name:       proto.String(Method),
				InputType:  proto.String("." + servicePackage + ".RateLimitRequest"),
				OutputType: proto.String("." + servicePackage + ".RateLimitResponse"),
			}},
		}},
	},
}

var unitNames = []string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"}

func responseRecord() *descriptorpb.DescriptorProto {
	const response = "." + servicePackage + ".RateLimitResponse"
	limit := messageType("RateLimit", field(1, "requests_per_unit", number),
		enumField(2, "unit", response+".RateLimit.Unit"), field(3, "name", text))
	limit.EnumType = []*descriptorpb.EnumDescriptorProto{enumType("Unit", unitNames)}
	r := nest(messageType("RateLimitResponse",
		enumField(1, "overall_code", response+".Code"),
		repeated(field(2, "statuses", response+".DescriptorStatus")),
		repeated(field(3, "response_headers_to_add", "."+corePackage+".HeaderValue")),
		repeated(field(4, "request_headers_to_add", "."+corePackage+".HeaderValue")),
		field(5, "raw_body", raw)),
		limit,
		messageType("DescriptorStatus", enumField(1, "code", response+".Code"),
			field(2, "current_limit", response+".RateLimit"),
			field(3, "limit_remaining", number), field(4, "duration_until_reset", ".google.protobuf.Duration")),
	)
	r.EnumType = []*descriptorpb.EnumDescriptorProto{enumType("Code", []string{"UNKNOWN", "OK", "OVER_LIMIT"})}

	return r
}

// The kinds of scalar fields. The kind of any other field is the name of its message or enum.
const (
	text   = "string"
	number = "uint32"
	flag   = "bool"
	raw    = "bytes"
)

var kinds = map[string]descriptorpb.FieldDescriptorProto_Type{
	text: descriptorpb.FieldDescriptorProto_TYPE_STRING, number: descriptorpb.FieldDescriptorProto_TYPE_UINT32,
	flag: descriptorpb.FieldDescriptorProto_TYPE_BOOL, raw: descriptorpb.FieldDescriptorProto_TYPE_BYTES,
}

func messageType(name string, fields ...*descriptorpb.FieldDescriptorProto) *descriptorpb.DescriptorProto {
	return &descriptorpb.DescriptorProto{Name: proto.String(name), Field: fields}
}

// nest nests messages in r.
func nest(r *descriptorpb.DescriptorProto, inside ...*descriptorpb.DescriptorProto) *descriptorpb.DescriptorProto {
	r.NestedType = inside
	return r
}

func field(n int32, name, kind string) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{
		Name: proto.String(name), JsonName: proto.String(jsonName(name)), Number: proto.Int32(n),
		Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	}
	if plain, ok := kinds[kind]; ok {
		f.Type = plain.Enum()
	} else {
		f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String(kind)
	}
	return f
}

// jsonName returns a field's name in JSON. Libraries derive it themselves, but
// some tools that read the schema by reflection don't.
func jsonName(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

func enumField(n int32, name, kind string) *descriptorpb.FieldDescriptorProto {
	f := field(n, name, kind)
	f.Type = descriptorpb.FieldDescriptorProto_TYPE_ENUM.Enum()
	return f
}

// repeated makes a field repeated.
func repeated(f *descriptorpb.FieldDescriptorProto) *descriptorpb.FieldDescriptorProto {
	f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	return f
}

func enumType(name string, values []string) *descriptorpb.EnumDescriptorProto {
	e := &descriptorpb.EnumDescriptorProto{Name: proto.String(name)}
	for i, v := range values {
		e.Value = append(e.Value,
			&descriptorpb.EnumValueDescriptorProto{Name: proto.String(v), Number: proto.Int32(int32(i))})
	}
	return e
}
