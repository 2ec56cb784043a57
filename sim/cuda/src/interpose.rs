//! Files that libcufile needs and machines without a GPU lack, served when this library is preloaded.
