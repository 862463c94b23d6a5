# find_package(baton): the targets baton::baton, the shared library, and baton::static, the archive.
# Everything is found from where this file lies, so the folder may be moved.
get_filename_component(_baton_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET baton::baton)
  add_library(baton::baton SHARED IMPORTED)
  set_target_properties(baton::baton PROPERTIES
    IMPORTED_LOCATION "${_baton_prefix}/lib/libbaton.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_baton_prefix}/include")
endif()

if(NOT TARGET baton::static)
  add_library(baton::static STATIC IMPORTED)
  set_target_properties(baton::static PROPERTIES
    IMPORTED_LOCATION "${_baton_prefix}/lib/libbaton.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_baton_prefix}/include"
    INTERFACE_LINK_LIBRARIES "-lgcc_s;-lpthread;-lm;-ldl")
endif()

unset(_baton_prefix)
