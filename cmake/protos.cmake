# Generated code lives in the build tree only: proto_public for the contract and the standard
# services, proto_agent for broker and agent, proto_store for the registry's records.
set(PROTO_ROOT ${CMAKE_SOURCE_DIR}/proto)
set(PROTO_OUT ${CMAKE_BINARY_DIR}/proto)
set(PROTO_WELL_KNOWN /usr/include)
file(MAKE_DIRECTORY ${PROTO_OUT})
find_program(PROTOC_C protoc-c REQUIRED)
find_program(PROTOC protoc REQUIRED)

set(PROTO_PUBLIC_FILES
  google/rpc/status google/rpc/error_details grpc/health/v1/health
  grpc/reflection/v1/reflection grpc/reflection/v1alpha/reflection
  sandlot/v1/errors sandlot/v1/types sandlot/v1/sandbox sandlot/v1/lease sandlot/v1/exec
  sandlot/v1/file sandlot/v1/broker)
set(PROTO_WELL_KNOWN_FILES
  google/protobuf/any google/protobuf/duration google/protobuf/timestamp google/protobuf/descriptor)

function(add_proto_library target)
  set(sources "")
  foreach(name ${ARGN})
    set(file ${PROTO_ROOT}/${name}.proto)
    if(NOT EXISTS ${file})
      set(file ${PROTO_WELL_KNOWN}/${name}.proto)
    endif()
    add_custom_command(
      OUTPUT ${PROTO_OUT}/${name}.pb-c.c ${PROTO_OUT}/${name}.pb-c.h
      COMMAND ${PROTOC_C} -I${PROTO_ROOT} -I${PROTO_WELL_KNOWN} --c_out=${PROTO_OUT} ${file}
      DEPENDS ${file}
      VERBATIM)
    list(APPEND sources ${PROTO_OUT}/${name}.pb-c.c)
  endforeach()
  string(TOUPPER ${target} upper)
  set(${upper}_SOURCES ${sources} PARENT_SCOPE)
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} SYSTEM PUBLIC ${PROTO_OUT})
  target_compile_options(${target} PRIVATE -w)
  set_target_properties(${target} PROPERTIES C_CLANG_TIDY "")
endfunction()

add_proto_library(proto_public ${PROTO_WELL_KNOWN_FILES} ${PROTO_PUBLIC_FILES})
add_proto_library(proto_agent sandlot/agent/v1/agent)
add_proto_library(proto_store sandlot/store/v1/records)
target_link_libraries(proto_store PUBLIC proto_public)
add_dependencies(proto_store proto_public)

# What server reflection answers from.
set(DESCRIPTOR_SET ${CMAKE_BINARY_DIR}/descriptors.bin)
set(DESCRIPTOR_PROTOS "")
foreach(name ${PROTO_PUBLIC_FILES})
  list(APPEND DESCRIPTOR_PROTOS ${PROTO_ROOT}/${name}.proto)
endforeach()
add_custom_command(
  OUTPUT ${DESCRIPTOR_SET}
  COMMAND ${PROTOC} -I${PROTO_ROOT} -I${PROTO_WELL_KNOWN} --include_imports
    --descriptor_set_out=${DESCRIPTOR_SET} ${DESCRIPTOR_PROTOS}
  DEPENDS ${DESCRIPTOR_PROTOS}
  VERBATIM)
add_custom_target(descriptor_set DEPENDS ${DESCRIPTOR_SET})
